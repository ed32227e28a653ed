"""Where output goes, beside torch's own answer."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.core.log_options import NO_FILES, LogOptions, Std
from node_agent.output.routing import Route, route

NPROC = 3
PATH = "/logs/file"
FILE, CONSOLE, BOTH, NOWHERE = Route(PATH, shown=False), Route(), Route(PATH, prefixed=True), Route(shown=False)
LEVELS = st.sampled_from([0, 1, 2, 3])
SETTINGS = st.one_of(LEVELS, st.dictionaries(st.integers(0, NPROC), LEVELS))
FILTERS = st.one_of(st.none(), st.frozensets(st.integers(0, NPROC)))


def routes(stream: Std = Std.OUT, *, first_rank: int = 0, **flags: Any) -> list[Route]:
    """Of the local ranks 0 to 2."""
    options = LogOptions(**flags)
    return [route(options, stream, local_rank=rank, rank=first_rank + rank, path=PATH) for rank in range(NPROC)]


def test_without_flags_everything_goes_to_the_console() -> None:
    assert routes() == routes(Std.ERR) == [CONSOLE] * NPROC


def test_redirected_output_goes_to_its_file_alone() -> None:
    assert routes(redirects=Std.OUT) == [FILE] * NPROC
    assert routes(Std.ERR, redirects=Std.OUT) == [CONSOLE] * NPROC


def test_teed_output_goes_to_both_even_if_it_is_redirected_too() -> None:
    assert routes(tee=Std.ALL) == routes(tee=Std.ALL, redirects=Std.ALL) == [BOTH] * NPROC


def test_a_map_leaves_the_others_alone() -> None:
    assert routes(tee={1: Std.OUT}, redirects={0: Std.ALL, 1: Std.ALL}) == [FILE, BOTH, CONSOLE]


def test_any_rank_number_may_be_mapped() -> None:
    options = LogOptions(redirects={12: Std.OUT})
    assert route(options, Std.OUT, local_rank=12, rank=12, path=PATH) == FILE


def test_a_filter_narrows_the_console_and_no_file() -> None:
    assert routes(local_ranks=frozenset({1})) == [NOWHERE, CONSOLE, NOWHERE]
    assert routes(local_ranks=frozenset({1}), tee=Std.ALL) == [FILE, BOTH, FILE]
    assert routes(local_ranks=frozenset({1}), redirects=Std.ALL) == [FILE] * NPROC


def test_global_ranks_are_filtered_wherever_they_run() -> None:
    assert routes(ranks=frozenset({5}), first_rank=4) == [NOWHERE, CONSOLE, NOWHERE]


def test_both_filters_must_let_a_rank_through() -> None:
    assert routes(ranks=frozenset({4, 5}), local_ranks=frozenset({1, 2}), first_rank=4) == [NOWHERE, CONSOLE, NOWHERE]


def test_where_no_files_can_be_written_the_console_says_whose_lines_they_are() -> None:
    options = LogOptions(redirects=Std.OUT)
    assert route(options, Std.OUT, local_rank=0, rank=0) == Route(prefixed=True)
    assert route(options, Std.ERR, local_rank=0, rank=0) == Route()


def test_without_files_everything_goes_to_the_console_and_the_filters_hold() -> None:
    assert routes(log_dir=NO_FILES, redirects=Std.ALL, tee=Std.ALL) == [CONSOLE] * NPROC
    assert routes(log_dir=NO_FILES, redirects=Std.ALL, local_ranks=frozenset({1})) == [NOWHERE, CONSOLE, NOWHERE]


@pytest.mark.torch
@settings(max_examples=150)
@given(redirects=SETTINGS, tee=SETTINGS, local_ranks=FILTERS, files=st.booleans())
def test_it_is_torchs_own_choice(
    tmp_path_factory: pytest.TempPathFactory, redirects: Any, tee: Any, local_ranks: Any, files: bool
) -> None:
    pytest.importorskip("torch")
    if not files:
        local_ranks = None  # torch forgets its filter then
    log_dir = str(tmp_path_factory.getbasetemp()) if files else NO_FILES
    expected = _torchs(log_dir, redirects, tee, local_ranks)
    flags = {"redirects": _std(redirects, Std), "tee": _std(tee, Std), "local_ranks": local_ranks, "log_dir": log_dir}
    assert (routes(Std.OUT, **flags), routes(Std.ERR, **flags)) == expected


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
