"""Maps by local rank: what is refused, and with which error; torch's own checks beside ours."""

from typing import Any

import pytest

from node_agent.api.maps import check_ranks, checked_environments, checked_streams, checked_texts, to_map
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
        checked_environments({0: {"A": "b"}, 1: {name: value}})
