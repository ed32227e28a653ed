"""Maps by local rank: which ones are refused, and with which error, compared with torch's own checks."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import node_agent
from node_agent import DefaultLogsSpecs, words
from node_agent.compat.api.default_logs_specs import checked_streams, to_map
from node_agent.compat.api.processes import check_environments, check_ranks, checked_texts
from node_agent.kernel.core.log_options import Std
from tests.support.message_search import pattern

BAD_KEYS: list[Any] = [{1: ()}, {0: (), 2: ()}, {0: (), 1: (), 2: ()}, {"0": (), "1": ()}, {-1: (), 0: ()}, {}]
GOOD_KEYS = {1: (), 0: ()}


@pytest.mark.parametrize(
    ("given", "count", "missing", "strange"),
    [
        *zip(BAD_KEYS, [2] * 6, [[0], [1], [], [0, 1], [1], [0, 1]], [[], [2], [2], ["0", "1"], [-1], []], strict=True),
        ({0: (), "one": ()}, 2, [1], ["one"]),
        ({1: ()}, 1, [0], [1]),
        ({0: ()}, 0, [], [0]),
    ],
)
def test_keys_are_the_local_ranks(given: Any, count: int, missing: list[int], strange: list[object]) -> None:
    with pytest.raises(RuntimeError) as refusal:
        check_ranks(given, "envs", count)
    assert str(refusal.value) == words.api.wrong_ranks("envs", count, missing, strange)


def test_valid_keys_are_accepted_in_any_order() -> None:
    check_ranks(GOOD_KEYS, "args")
    check_ranks({}, "args")


def test_a_list_is_not_accepted_as_a_map() -> None:
    with pytest.raises(TypeError, match=pattern(words.api.not_a_map, what="args", kind="list")):
        check_ranks([()], "args")
    with pytest.raises(TypeError, match=pattern(words.api.not_an_environment, what="envs[0]", given=None)):
        check_environments({0: None})


@pytest.mark.torch
@pytest.mark.parametrize("given", [*BAD_KEYS, GOOD_KEYS])
def test_torch_refuses_the_same_keys_with_the_same_error(given: Any) -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    with nullcontext() if given == GOOD_KEYS else pytest.raises(RuntimeError):
        theirs._validate_full_rank(given, 2, "args")


def test_to_map_names_every_local_rank() -> None:
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.ERR, 7: Std.OUT}, 3) == {0: Std.NONE, 1: Std.ERR, 2: Std.NONE}


@pytest.mark.torch
def test_to_map_is_torchs() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    for value in range(4):
        assert to_map(Std(value), 2) == theirs.to_map(theirs.Std(value), 2)
        assert to_map({1: Std(value)}, 2) == theirs.to_map({1: theirs.Std(value)}, 2)


@pytest.mark.torch
def test_streams_may_be_numbers_and_torchs() -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing").Std
    assert checked_streams(3, "tee") is checked_streams(theirs.ALL, "tee") is Std.ALL
    assert checked_streams({0: 1, 5: theirs.NONE}, "tee") == {0: Std.OUT, 5: Std.NONE}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        *((given, TypeError, words.api.not_streams("tee", given)) for given in ("1", None, True)),
        *((given, TypeError, words.api.not_a_local_rank("tee", *given)) for given in ({"0": Std.OUT}, {-1: Std.OUT})),
        ({0: "1"}, TypeError, words.api.not_streams("tee[0]", "1")),
        ({0: 4}, ValueError, words.api.not_a_number_of_streams("tee[0]", 4)),
    ],
)
def test_other_streams_are_refused(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(says)}$"):
        checked_streams(given, "tee")


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


def reified(module: Any, log_dir: str, envs: dict[int, dict[str, str]], **given: Any) -> list[Any]:
    """Return torch's and our result, twice each. The folder's name has a random part."""
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
@pytest.mark.torch
def test_reify_is_torchs(tmp_path: Path, given: dict[str, Any], has_files: bool) -> None:
    """There is one difference: two attempts with the same restart count have two folders; torch deletes the first one's
    logs.
    """
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    folder, answers = str(tmp_path) if has_files else "/dev/null", []
    for module in (theirs, node_agent):
        envs = {rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"} for rank in range(2)}
        answers.append(reified(module, folder, envs, **_with_streams_of(module, given)))
    if not has_files:
        for destination in (*answers[0][:2], *answers[1][:2]):
            for key in ("filtered_stdout", "filtered_stderr", "stdouts", "stderrs", "tee_stdouts", "tee_stderrs"):
                del destination[key]  # without files, ours uses a filter for the shown ranks, and torch's does not
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
    assert DefaultLogsSpecs(tee=Std.OUT) == DefaultLogsSpecs(tee=1) != DefaultLogsSpecs(tee=Std.ERR)
