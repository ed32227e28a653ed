"""Routes of output, compared with torch's own answer."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.kernel.core.log_options import NO_FILES, LogOptions, Std
from node_agent.kernel.output.routing import Route, route, streams_to_files

NPROC = 3
PATH = "/logs/file"
FILE, CONSOLE, BOTH, NOWHERE = Route(PATH, shown=False), Route(), Route(PATH, prefixed=True), Route(shown=False)
LEVELS = st.sampled_from([0, 1, 2, 3])
SETTINGS = st.one_of(LEVELS, st.dictionaries(st.integers(0, NPROC), LEVELS))
FILTERS = st.one_of(st.none(), st.frozensets(st.integers(0, NPROC)))


def routes(stream: Std = Std.OUT, *, first_rank: int = 4, path: str = PATH, **flags: Any) -> list[Route]:
    """Return the routes of the local ranks 0 to 2."""
    options = LogOptions(**flags)
    return [route(options, stream, local_rank=rank, rank=first_rank + rank, path=path) for rank in range(NPROC)]


@pytest.mark.parametrize(
    ("flags", "out", "err"),
    [
        ({}, [CONSOLE] * 3, [CONSOLE] * 3),
        ({"redirects": Std.OUT}, [FILE] * 3, [CONSOLE] * 3),
        ({"tee": Std.ALL}, [BOTH] * 3, [BOTH] * 3),
        ({"tee": Std.ERR, "redirects": Std.ALL}, [FILE] * 3, [BOTH] * 3),
        ({"tee": {1: Std.OUT}, "redirects": {0: Std.ALL, 1: Std.ALL}}, [FILE, BOTH, CONSOLE], [FILE, FILE, CONSOLE]),
        ({"local_ranks": {1}}, [NOWHERE, CONSOLE, NOWHERE], [NOWHERE, CONSOLE, NOWHERE]),
        ({"local_ranks": {1}, "tee": Std.OUT, "redirects": Std.ERR}, [FILE, BOTH, FILE], [FILE] * 3),
        ({"ranks": {5}}, [NOWHERE, CONSOLE, NOWHERE], [NOWHERE, CONSOLE, NOWHERE]),
        ({"ranks": {4, 5}, "local_ranks": {1, 2}}, [NOWHERE, CONSOLE, NOWHERE], [NOWHERE, CONSOLE, NOWHERE]),
        ({"redirects": Std.OUT, "path": ""}, [Route(prefixed=True)] * 3, [CONSOLE] * 3),
        ({"log_dir": NO_FILES, "redirects": Std.ALL, "tee": Std.ALL}, [CONSOLE] * 3, [CONSOLE] * 3),
        (
            {"log_dir": NO_FILES, "redirects": Std.OUT, "local_ranks": {1}},
            [NOWHERE, CONSOLE, NOWHERE],
            [NOWHERE, CONSOLE, NOWHERE],
        ),
    ],
    ids=[
        "no-flags", "redirected", "teed", "teed-and-redirected", "maps", "local-ranks", "local-ranks-of-files",
        "global-ranks", "both-filters", "no-files-can-be-made", "no-files", "no-files-and-a-filter",
    ],
)  # fmt: skip
def test_the_flags_decide_where_output_goes(flags: dict[str, Any], out: list[Route], err: list[Route]) -> None:
    assert routes(Std.OUT, **flags) == out
    assert routes(Std.ERR, **flags) == err


@pytest.mark.torch
@settings(max_examples=150)
@given(redirects=SETTINGS, tee=SETTINGS, local_ranks=FILTERS, files=st.booleans())
def test_our_routing_equals_torchs(
    tmp_path_factory: pytest.TempPathFactory, redirects: Any, tee: Any, local_ranks: Any, files: bool
) -> None:
    if not files:
        local_ranks = None  # torch ignores its filter then
    log_dir = str(tmp_path_factory.getbasetemp()) if files else NO_FILES
    expected = _torchs(log_dir, redirects, tee, local_ranks)
    flags = {"redirects": _std(redirects, Std), "tee": _std(tee, Std), "local_ranks": local_ranks, "log_dir": log_dir}
    assert (routes(Std.OUT, first_rank=0, **flags), routes(Std.ERR, first_rank=0, **flags)) == expected


def _torchs(log_dir: str, redirects: Any, tee: Any, local_ranks: Any) -> tuple[list[Route], list[Route]]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    specs = DefaultLogsSpecs(log_dir, _std(redirects, TorchStd), _std(tee, TorchStd), local_ranks and set(local_ranks))
    logs = specs.reify({rank: {} for rank in range(NPROC)})
    return _read(logs.stdouts, logs.tee_stdouts), _read(logs.stderrs, logs.tee_stderrs)


def _read(paths: dict[int, str], teed: dict[int, str]) -> list[Route]:
    return [_route(paths[rank], teed.get(rank, os.devnull)) for rank in range(NPROC)]


def _route(path: str, teed: str) -> Route:
    if path in ("", os.devnull):
        return CONSOLE if not path else NOWHERE
    return BOTH if teed != os.devnull else FILE


def _std(setting: Any, kind: Any) -> Any:
    return kind(setting) if isinstance(setting, int) else {rank: kind(level) for rank, level in setting.items()}


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 0),
        ({"tee": Std.ALL}, 6),
        ({"tee": Std.ERR, "redirects": Std.ALL}, 6),
        ({"tee": {1: Std.OUT, 7: Std.ALL}, "redirects": {0: Std.ALL, 1: Std.OUT}}, 3),
        ({"log_dir": NO_FILES, "redirects": Std.ALL}, 0),
        ({"plugin": "own"}, 6),
    ],
)
def test_streams_that_go_to_files_are_counted(flags: dict[str, Any], count: int) -> None:
    assert streams_to_files(LogOptions(**flags), NPROC) == count
