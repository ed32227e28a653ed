"""Maps by local rank: what is refused, and with which error; torch's own checks beside ours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import node_agent
from node_agent import DefaultLogsSpecs
from node_agent.api.default_logs_specs import checked_streams, to_map
from node_agent.api.processes import check_environments, check_ranks, checked_texts
from node_agent.core.log_options import Std

BAD_KEYS = [{1: ()}, {0: (), 2: ()}, {0: (), 1: (), 2: ()}, {"0": (), "1": ()}, {-1: (), 0: ()}, {}]


@pytest.mark.parametrize("given", BAD_KEYS)
def test_keys_are_the_local_ranks(given: dict[Any, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"^envs: its keys must be the local ranks 0 to 1; "):
        check_ranks(given, 2, "envs")


def test_what_is_wrong_with_the_keys_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"1 is missing, 'one' is none$"):
        check_ranks({0: (), "one": ()}, 2, "args")  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match="no local ranks: there are no args; 0 is none"):
        check_ranks({0: {}}, 0, "envs")


def test_good_keys_pass_in_any_order() -> None:
    check_ranks({1: (), 0: ()}, 2, "args")
    check_ranks({}, 0, "args")


def test_a_list_is_no_map() -> None:
    with pytest.raises(TypeError, match="args: a map from each local rank, not list"):
        check_ranks([()], 1, "args")  # type: ignore[arg-type]


@pytest.mark.torch
@pytest.mark.parametrize("given", [*BAD_KEYS, {0: (), 1: ()}])
def test_torch_refuses_the_same_keys_with_the_same_error(given: dict[Any, Any]) -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    errors = []
    for check in (lambda: theirs._validate_full_rank(given, 2, "args"), lambda: check_ranks(given, 2, "args")):
        try:
            check()
            errors.append(None)
        except Exception as error:
            errors.append(type(error))  # type: ignore[arg-type]
    assert errors[0] is errors[1]


@pytest.mark.parametrize("given", [Std.OUT, {1: Std.OUT}, {0: Std.ALL, 1: Std.ERR}, {7: Std.OUT}, {}])
def test_to_map_names_every_local_rank(given: Std | dict[int, Std]) -> None:
    expected = (
        dict.fromkeys(range(3), given) if isinstance(given, Std) else {r: given.get(r, Std.NONE) for r in range(3)}
    )
    assert to_map(given, 3) == expected


@pytest.mark.torch
def test_to_map_is_torchs() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    for value in range(4):
        assert to_map(Std(value), 2) == theirs.to_map(theirs.Std(value), 2)
        assert to_map({1: Std(value)}, 2) == theirs.to_map({1: theirs.Std(value)}, 2)


def test_streams_may_be_numbers() -> None:
    assert checked_streams(3, "tee") is Std.ALL
    assert checked_streams({0: 1, 5: Std.NONE}, "tee") == {0: Std.OUT, 5: Std.NONE}


@pytest.mark.torch
def test_streams_may_be_torchs() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing").Std
    assert checked_streams({0: theirs.ERR}, "tee") == {0: Std.ERR}
    assert type(checked_streams(theirs.ALL, "tee")) is Std


@pytest.mark.parametrize("given", ["1", None, True, {0: "1"}, {"0": Std.OUT}, {-1: Std.OUT}])
def test_other_streams_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^redirects"):
        checked_streams(given, "redirects")


def test_numbers_that_are_no_streams_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^tee\[0\]: 0 \(none\), 1 \(stdout\), 2 \(stderr\) or 3 \(both\), not 4$"):
        checked_streams({0: 4}, "tee")


@pytest.mark.parametrize("given", [["a"], {0: 1}, {"0": "a"}])
def test_prefixes_are_texts_by_rank(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^log_line_prefixes"):
        checked_texts(given, "log_line_prefixes")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("A", 1, TypeError),
        (1, "a", TypeError),
        ("", "a", ValueError),
        ("A=B", "a", ValueError),
        ("A", "\0", ValueError),
    ],
)
def test_environments_are_what_the_system_takes(name: Any, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^envs\[1\]: "):
        check_environments({0: {"A": "b"}, 1: {name: value}})


@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:1", "0:3,1:0,2:1,3:2"])
@pytest.mark.torch
def test_streams_are_read_as_torch_reads_them(text: str) -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing").Std
    assert Std.from_str(text) == theirs.from_str(text)


def test_a_map_of_streams_may_name_any_rank() -> None:
    assert Std.from_str("10:3") == {10: Std.ALL}


@pytest.mark.parametrize("text", ["", "4", "-1", "0:", "0:4", "a:1", "0:1,", "0:1;1:2"])
def test_other_texts_are_no_streams(text: str) -> None:
    with pytest.raises(ValueError, match="or a map from local ranks such as 0:1,1:3"):
        Std.from_str(text)


def reified(module: Any, log_dir: str, envs: dict[int, dict[str, str]], **given: Any) -> list[Any]:
    """torch's and ours, twice each; the folder's name has a random part."""
    specs = module.DefaultLogsSpecs(log_dir, **given)
    destinations = [specs.reify(envs), specs.reify(envs)]
    texts = re.sub(rf"{log_dir}/job_\w+/attempt_\d", "ATTEMPT", json.dumps([*map(vars, destinations), envs]))
    return list(json.loads(texts))


@pytest.mark.torch
@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"redirects": Std.ALL},
        {"tee": Std.OUT, "redirects": {1: Std.ERR}},
        {"tee": {0: Std.ALL}, "local_ranks_filter": {1}},
        {"redirects": {0: Std.OUT}, "local_ranks_filter": {0}},
    ],
)
def test_reify_is_torchs(tmp_path: Path, given: dict[str, Any], has_files: bool) -> None:
    """But that two attempts with one restart count are two folders here, where torch deletes the first one's logs."""
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    folder, answers = str(tmp_path) if has_files else "/dev/null", []
    for module in (theirs, node_agent):
        envs = {rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"} for rank in range(2)}
        answers.append(reified(module, folder, envs, **_with_streams_of(module, given)))
    if not has_files:
        for destination in (*answers[0][:2], *answers[1][:2]):
            for key in ("filtered_stdout", "filtered_stderr", "stdouts", "stderrs", "tee_stdouts", "tee_stderrs"):
                del destination[key]  # without files ours tells by a filter which ranks are shown, torch's does not
    assert answers[0] == answers[1]


def _with_streams_of(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    def own(value: Any) -> Any:
        if isinstance(value, dict):
            return {rank: module.Std(int(stream)) for rank, stream in value.items()}
        return module.Std(int(value)) if isinstance(value, Std) else value

    return {name: own(value) for name, value in given.items()}


def test_reify_makes_the_folders(tmp_path: Path) -> None:
    envs: dict[int, dict[str, str]] = {0: {}}
    destination = DefaultLogsSpecs(tmp_path / "logs", Std.OUT).reify(envs)
    Path(destination.stdouts[0]).write_text("x")
    Path(envs[0]["TORCHELASTIC_ERROR_FILE"]).write_text("{}")
    assert destination.error_files == {0: envs[0]["TORCHELASTIC_ERROR_FILE"]}


def test_default_specs_are_equal_by_what_they_ask_for() -> None:
    assert DefaultLogsSpecs(tee=Std.OUT) == DefaultLogsSpecs(tee=1) != DefaultLogsSpecs(tee=Std.ERR)  # type: ignore[arg-type]
