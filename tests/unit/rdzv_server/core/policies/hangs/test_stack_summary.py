"""The sentence that says what all ranks were doing, and the rank that they wait for."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.evidence import (
    MOST_BYTES,
    MOST_FRAMES,
    MOST_GROUPS,
    Evidence,
    Frame,
    LastError,
    ProcessState,
    StackGroup,
    bounded,
    frame,
)
from rdzv_protocol.messages import Failure

from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.stack_summary import (
    MOST_CULPRITS,
    SENTENCE_BYTES,
    StackSummary,
    place_of,
    summarize,
)

TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = frame("<module>", "/home/a/train.py", 120)

ALL_REDUCE = (
    frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3252),
    frame("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py", 83),
    frame("step", "/home/a/train.py", 88),
    MAIN,
)
BARRIER = (frame("barrier", f"{TORCH}/distributed/distributed_c10d.py", 5200), frame("save", "/home/a/train.py", 97))
DATA_LOADER = (
    frame("wait", "/usr/lib/python3.11/multiprocessing/connection.py", 948),
    frame("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/utils/data/dataloader.py", 1310),
    frame("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py", 741),
    frame("batches", "/home/a/data.py", 31),
    MAIN,
)
BACKWARD = (
    frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 829),
    frame("backward", f"{TORCH}/autograd/__init__.py", 359),
    frame("Tensor.backward", f"{TORCH}/_tensor.py", 625),
    frame("step", "/home/a/train.py", 85),
)
OWN_LOOP = (frame("tokenize", "/home/a/data.py", 12), MAIN)
SHUTDOWN = (frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),)
AT_EXIT = (
    frame("Process.join", "/usr/lib/python3.11/multiprocessing/process.py", 149),
    frame("_exit_function", "/usr/lib/python3.11/multiprocessing/util.py", 360),
)
IN_HANDLER = (*ALL_REDUCE[:2], frame("save_last", "/home/a/train.py", 88))
"""Stack of a main thread in a function that `atexit` calls."""
DESTROY = (frame("destroy_process_group", f"{TORCH}/distributed/distributed_c10d.py", 2200), MAIN)
LINEAR = (
    frame("Linear.forward", f"{TORCH}/nn/modules/linear.py", 134),
    frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1790),
    frame("Module._wrapped_call_impl", f"{TORCH}/nn/modules/module.py", 1779),
    frame("Net.forward", "/home/a/model.py", 44),
)


def group(ranks: object, frames: tuple[Frame, ...] = ALL_REDUCE, **more: object) -> StackGroup:
    return StackGroup(ranks=tuple(ranks) if not isinstance(ranks, int) else (ranks,), frames=frames, **more)


AT_REDUCE, AT_BARRIER = words.place("all_reduce", "train.py", 88), words.place("barrier", "train.py", 97)
AT_LOADER, AT_OWN_LOOP = words.place("DataLoader", "data.py", 31), words.place("tokenize", "data.py", 12)
AT_BACKWARD = words.place("backward", "train.py", 85)


def do(ranks: object, place: str = AT_REDUCE, state: ProcessState = ProcessState.ALIVE, *, of: int = 8) -> str:
    """Return the part of a summary about ranks at one place."""
    return words.ranks_at([ranks] if isinstance(ranks, int) else list(ranks), of, place, state)


def parts(*of_summary: str) -> str:
    return "; ".join(of_summary)


def summary_of(*groups: StackGroup, silent: dict[str, list[int]] | None = None) -> StackSummary:
    """Summarize the stacks of as many nodes as there are groups."""
    evidence = {f"node{number}": Evidence(groups=(each,)) for number, each in enumerate(groups)}
    return summarize(evidence, silent or {})


def test_the_rank_that_is_not_in_the_collective_is_named() -> None:
    waiting = Evidence(groups=(group([8, 9, 10, 11, 12, 13, 14, 15]),))
    odd = Evidence(groups=(group([0, 1, 2, 3, 4, 5, 6]), group(7, DATA_LOADER)))
    summary = summarize({"a": odd, "b": waiting}, {})
    assert summary.sentence == parts(do(range(15), of=16), do(7, AT_LOADER))
    assert [(culprit.rank, culprit.node_id) for culprit in summary.culprits] == [(7, "a")]
    assert summary.stack[-2:] == (
        f'  File "{TORCH}/utils/data/dataloader.py", line 1310, in _MultiProcessingDataLoaderIter._try_get_data',
        '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 948, in wait',
    )


def test_ranks_that_are_steps_ahead_are_not_to_blame() -> None:
    """Ranks of another group step on, and none of them has anything to do with the hang of the first two."""
    hang = (group(0, BARRIER, step=2), group(1, step=2))
    summary = summary_of(*hang, group(2, OWN_LOOP, step=20), group(3, ALL_REDUCE, step=19))
    assert summary.culprits == () and summary.sentence.endswith(words.CULPRIT_UNKNOWN)
    summary = summary_of(
        group([0, 1, 2], step=7), group(3, DATA_LOADER, step=7), group([4, 5, 6, 7], OWN_LOOP, step=90)
    )
    assert [culprit.rank for culprit in summary.culprits] == [3]


def test_a_rank_that_is_a_step_ahead_may_be_to_blame() -> None:
    summary = summary_of(group([0, 1, 2], step=7), group(3, DATA_LOADER, step=8))
    assert [culprit.rank for culprit in summary.culprits] == [3]


def test_nccls_own_message_comes_last() -> None:
    said = ("#0-0 (78db) MISMATCH", "  Rank 7 has launched up to operation 60 -- GPU 3")
    summary = summarize({"a": Evidence(groups=(group([0, 1]),)), "b": Evidence(groups=(group([2]),), nccl=said)}, {})
    assert summary.sentence.endswith(f"; {words.nccl_says([said[0], said[1].strip()])}")


@pytest.mark.parametrize(
    ("frames", "place", "waits"),
    [
        (ALL_REDUCE, AT_REDUCE, True),
        (BARRIER, AT_BARRIER, True),
        (DATA_LOADER, AT_LOADER, False),
        (BACKWARD, AT_BACKWARD, None),
        (OWN_LOOP, AT_OWN_LOOP, None),
        (LINEAR, words.place("forward", "model.py", 44), None),
        ((frame("get", "/usr/lib/python3.11/queue.py", 171), MAIN), words.place("get", "train.py", 120), False),
        (
            (frame("get_rank", f"{TORCH}/distributed/distributed_c10d.py", 9), MAIN),
            words.place("get_rank", "train.py", 120),
            False,
        ),
        ((frame("run", "/home/torch/optim/x.py", 3),), words.place("run", "x.py", 3), None),
        (
            (*ALL_REDUCE[:2], frame("Trainer.step", "/v/lib/python3.11/site-packages/transformers/trainer.py", 25)),
            words.place("all_reduce", "transformers/trainer.py", 25),
            True,
        ),
        (SHUTDOWN, words.interpreter_shutdown("threading.py", 1590), False),
        (AT_EXIT, words.interpreter_shutdown("process.py", 149), False),
        ((*DESTROY[:1],), words.interpreter_shutdown("torch/distributed/distributed_c10d.py", 2200), False),
        (DESTROY, words.place("destroy_process_group", "train.py", 120), True),
        ((), "", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_place_of_a_stack(frames: tuple[Frame, ...], place: str, waits: bool | None) -> None:
    assert place_of(frames) == (place, waits)


def raised(rank: int, **more: Any) -> LastError:
    return LastError(rank=rank, error=f"ValueError: boom {rank}", traceback=("Traceback:", "boom"), **more)


@pytest.mark.parametrize(
    ("groups", "errors", "culprits"),
    [
        pytest.param([group(0, SHUTDOWN), group([1, 2])], [raised(0)], [0], id="a thread keeps its process alive"),
        pytest.param([group(0, AT_EXIT), group([1, 2], ())], [raised(0)], [0], id="a child process does"),
        pytest.param([group(0, DESTROY), group(1)], [raised(0)], [0], id="it leaves the group, and the others do not"),
        pytest.param([group(range(3), ())], [raised(1, is_uncaught=True)], [1], id="torch says so, without any stack"),
        pytest.param([group(0, SHUTDOWN), group(1, SHUTDOWN)], [raised(0), raised(1, is_consequence=True)], [0],
                     id="rather than one whose exception follows from it"),
        pytest.param([group(range(3))], [raised(1)], [], id="not one that has caught its exception"),
        pytest.param([group(range(3))], [raised(1, is_uncaught=True)], [], id="nor one whose child process has died"),
        pytest.param([group([0, 1], DESTROY)], [raised(1)], [], id="not if all leave the group"),
        pytest.param([group([0, 1], SHUTDOWN)], [raised(0), raised(1)], [], id="not if all have raised one"),
        pytest.param([group([0, 1], ())], [raised(0, is_uncaught=True, is_consequence=True)], [],
                     id="not one whose exception is a consequence"),
        pytest.param([group([0, 1])], [raised(7, is_uncaught=True)], [], id="not one that is not there"),
    ],
)  # fmt: skip
def test_a_rank_whose_script_has_ended_with_an_exception_is_to_blame(
    groups: list[StackGroup], errors: list[LastError], culprits: list[int]
) -> None:
    summary = summarize({"a": Evidence(groups=tuple(groups), errors=tuple(errors))}, {})
    assert [culprit.rank for culprit in summary.culprits] == culprits
    assert (summary.error, summary.traceback) == (
        (f"ValueError: boom {culprits[0]}", ("Traceback:", "boom")) if culprits else ("", ())
    )


@pytest.mark.parametrize(
    ("groups", "errors", "culprit", "why"),
    [
        pytest.param([group(range(3), ())], [raised(1, thread="loader")], 1, words.LOST_THREAD, id="without any stack"),
        pytest.param([group(range(3))], [raised(1, thread="loader")], 1, words.LOST_THREAD, id="all in one place"),
        pytest.param([group(0, OWN_LOOP), group([1, 2])], [raised(0, thread="loader")], 0, words.OUTSIDE_COLLECTIVE,
                     id="the others wait for it"),
        pytest.param([group(0, OWN_LOOP), group([1, 2])], [raised(1, thread="loader")], None, words.OUTSIDE_COLLECTIVE,
                     id="the others wait for another one"),
        pytest.param([group(0)], [raised(0, thread="loader")], 0, words.LOST_THREAD, id="the only rank"),
        pytest.param([group([0, 1])], [raised(0, thread="a"), raised(1, thread="b")], None, "", id="all have"),
        pytest.param([group([0, 1])], [raised(0, thread="a", is_consequence=True)], None, "", id="a consequence"),
    ],
)  # fmt: skip
def test_a_rank_that_an_exception_has_cost_a_thread_is_named_with_the_exception(
    groups: list[StackGroup], errors: list[LastError], culprit: int | None, why: str
) -> None:
    """It is to blame only if nothing better singles a rank out: the exception may be older than the hang."""
    summary = summarize({"a": Evidence(groups=tuple(groups), errors=tuple(errors))}, {})
    assert summary.why == why and not summary.proves_hang
    own = [error for error in errors if not error.is_consequence]
    named = words.thread_ended(own[0].rank, own[0].thread, own[0].error, len(own) - 1) if own else ""
    assert named in summary.sentence and bool(named) is ("lost its thread" in summary.sentence)
    assert summary.error == (f"ValueError: boom {culprit}" if culprit is not None else "")
    assert bool(summary.traceback) is (culprit is not None)


def test_an_operators_look_at_a_healthy_run_names_a_lost_thread_and_does_not_blame_a_rank() -> None:
    evidence = {"a": Evidence(groups=(group([0, 1]),), errors=(raised(1, thread="loader"),))}
    summary = summarize(evidence, {}, hangs=False)
    assert words.thread_ended(1, "loader", "ValueError: boom 1", 0) in summary.sentence
    assert not summary.culprits and not summary.error


IN_MODULE = ("Traceback (most recent call last):", '  File "/home/a/train.py", line 120, in <module>', "    main()")
IN_FUNCTION = (IN_MODULE[0], '  File "/home/a/train.py", line 88, in step', "    sync()", *IN_MODULE[1:2])


@pytest.mark.parametrize(
    ("frames", "traceback", "is_to_blame"),
    [
        pytest.param(IN_HANDLER, IN_MODULE, True, id="in an exit handler"),
        pytest.param(IN_HANDLER, (), True, id="torch says that the exception has ended it"),
        pytest.param(IN_HANDLER, (IN_MODULE[0], '  File "<frozen runpy>", line 198, in _run_module_as_main'), True,
                     id="in that of a module"),
        pytest.param(ALL_REDUCE, IN_MODULE, False, id="not in the script, which has caught it"),
        pytest.param(IN_HANDLER, IN_FUNCTION, False, id="not if a function may have caught it"),
        pytest.param(IN_HANDLER, IN_MODULE[1:], False, id="not if the beginning of the traceback is lost"),
        pytest.param((*ALL_REDUCE[:2], frame("_run_module_as_main", "<frozen runpy>", 198)), IN_MODULE, False,
                     id="not in a module"),
        pytest.param((*OWN_LOOP[:1], frame("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002)), IN_MODULE,
                     False, id="not in a process that a thread has forked"),
        pytest.param((*OWN_LOOP[:1], frame("...", "<cut>", 0)), IN_MODULE, False, id="not if the stack is cut"),
        pytest.param((frame("_find_and_load", "<frozen importlib._bootstrap>", 1176),), IN_MODULE, False,
                     id="not in Python's start"),
    ],
)  # fmt: skip
def test_a_rank_in_an_exit_handler_of_its_own_is_to_blame_if_its_exception_has_left_the_script(
    frames: tuple[Frame, ...], traceback: tuple[str, ...], is_to_blame: bool
) -> None:
    error = LastError(rank=0, error="ValueError: boom", traceback=traceback, is_uncaught=not traceback)
    summary = summarize({"a": Evidence(groups=(group(0, frames), group([1, 2])), errors=(error,))}, {})
    assert (summary.why == words.HAS_RAISED) is is_to_blame
    if is_to_blame:
        assert [culprit.rank for culprit in summary.culprits] == [0]
        assert summary.sentence.endswith(f"; {words.blame([0], words.HAS_RAISED)}")


def test_an_exit_handler_without_an_exception_does_not_blame_a_rank() -> None:
    summary = summarize({"a": Evidence(groups=(group([0, 1, 2], IN_HANDLER), group(3, OWN_LOOP)))}, {})
    assert summary.why != words.HAS_RAISED
    assert summary.sentence.startswith(parts(do(range(3), of=4), do(3, AT_OWN_LOOP)))


EVERYBODY_ELSE = group(range(1, 8))


@pytest.mark.parametrize(
    ("groups", "culprits", "sentence"),
    [
        pytest.param(
            [group(0, state=ProcessState.STOPPED), EVERYBODY_ELSE],
            [0],
            parts(do(range(1, 8)), do(0, state=ProcessState.STOPPED)),
            id="a stopped process, though it is in the collective",
        ),
        pytest.param(
            [
                group(0, (), state=ProcessState.UNINTERRUPTIBLE, wchan="nfs_wait"),
                group(range(1, 7)),
                group(7, OWN_LOOP),
            ],
            [0],
            parts(
                do(range(1, 7)),
                words.ranks_at([0], 8, "", ProcessState.UNINTERRUPTIBLE, "nfs_wait"),
                do(7, AT_OWN_LOOP),
                words.blame([0], words.DOES_NOT_RUN),
            ),
            id="a process in uninterruptible sleep, rather than one that is elsewhere",
        ),
        pytest.param(
            [group(0, DATA_LOADER), group(1, OWN_LOOP), group(range(2, 8))],
            [0],
            parts(do(range(2, 8)), do(0, AT_LOADER), do(1, AT_OWN_LOOP), words.blame([0], words.OUTSIDE_COLLECTIVE)),
            id="one that surely is elsewhere, rather than one that may be in a collective",
        ),
        pytest.param(
            [group([0, 1, 2], DATA_LOADER), group(3)],
            [0, 1, 2],
            parts(do(range(3), AT_LOADER), do(3), words.blame([0, 1, 2], words.OUTSIDE_COLLECTIVE)),
            id="three whom one waits for",
        ),
        pytest.param(
            [group(0, OWN_LOOP), group(1)],
            [0],
            parts(do(0, AT_OWN_LOOP), do(1), words.blame([0], words.OUTSIDE_COLLECTIVE)),
            id="one of two",
        ),
        pytest.param(
            [group(range(7)), group(7, BARRIER)],
            [7],
            parts(do(range(7)), do(7, AT_BARRIER)),
            id="another collective",
        ),
        pytest.param(
            [group(0), group(1, BARRIER)],
            [],
            parts(do(0), do(1, AT_BARRIER), words.CULPRIT_UNKNOWN),
            id="two in different collectives",
        ),
        pytest.param(
            [group(range(7), collective=41), group(7, collective=40)],
            [7],
            parts(do(range(8)), words.blame([7], words.FEWER_COLLECTIVES)),
            id="fewer collectives",
        ),
        pytest.param(
            [group(range(6), step=12), group([6, 7], step=11)],
            [6, 7],
            parts(do(range(8)), words.blame([6, 7], words.LOWER_STEP)),
            id="a lower step",
        ),
        pytest.param(
            [group(range(7), OWN_LOOP), group(7, BACKWARD)],
            [7],
            parts(do(range(7), AT_OWN_LOOP), do(7, AT_BACKWARD)),
            id="elsewhere than most, where no collective is seen",
        ),
        pytest.param(
            [group(range(8))],
            [],
            parts(do(range(8)), words.CULPRIT_UNKNOWN),
            id="all in the same collective",
        ),
        pytest.param(
            [group(range(8), state=ProcessState.STOPPED)],
            [],
            parts(do(range(8), state=ProcessState.STOPPED), words.CULPRIT_UNKNOWN),
            id="all stopped",
        ),
        pytest.param([group(0, OWN_LOOP)], [], do(0, AT_OWN_LOOP), id="alone"),
        pytest.param([], [], words.NO_EVIDENCE, id="nothing"),
    ],
)
def test_blamed_ranks(groups: list[StackGroup], culprits: list[int], sentence: str) -> None:
    summary = summary_of(*groups)
    assert [culprit.rank for culprit in summary.culprits] == culprits
    assert summary.sentence == sentence


@pytest.mark.parametrize(
    ("hangs", "groups", "culprits", "sentence"),
    [
        (None, [group(range(8))], [], do(range(8))),
        (False, [group(range(8))], [], do(range(8))),
        (
            None,
            [group(range(6), step=12), group([6, 7], step=11)],
            [6, 7],
            parts(do(range(8)), words.blame([6, 7], words.LOWER_STEP)),
        ),
        (False, [group(range(6), step=12), group([6, 7], step=11)], [], do(range(8))),
        (
            False,
            [group(range(7)), group(7, OWN_LOOP)],
            [],
            parts(do(range(7)), do(7, AT_OWN_LOOP)),
        ),
        (
            False,
            [group(range(7)), group(7, state=ProcessState.STOPPED)],
            [],
            parts(do(range(7)), do(7, state=ProcessState.STOPPED)),
        ),
    ],
)
def test_a_run_without_a_suspected_hang_has_no_verdict_about_one(
    hangs: bool | None, groups: list[StackGroup], culprits: list[int], sentence: str
) -> None:
    evidence = {f"node{number}": Evidence(groups=(each,)) for number, each in enumerate(groups)}
    summary = summarize(evidence, {}, hangs=hangs)
    assert [culprit.rank for culprit in summary.culprits] == culprits
    assert summary.sentence == sentence


def test_a_node_that_does_not_answer_is_to_blame_while_the_others_wait_for_it() -> None:
    summary = summary_of(group(range(4)), silent={"node9": [4, 5]})
    assert summary.sentence == parts(do(range(4)), words.no_answer_from([4, 5], 6, "node9"))
    assert {(culprit.rank, culprit.node_id) for culprit in summary.culprits} == {(4, "node9"), (5, "node9")}


def test_if_several_nodes_do_not_answer_no_node_is_blamed() -> None:
    summary = summary_of(group(range(4)), silent={"node8": [4, 5], "node9": [6]})
    assert summary.culprits == ()
    assert summary.sentence == parts(
        do(range(4)), words.no_answer_from([4, 5, 6], 7, "node8", 1), words.CULPRIT_UNKNOWN
    )


def test_a_node_that_does_not_answer_is_not_to_blame_if_another_node_is() -> None:
    summary = summary_of(group(range(3)), group(3, DATA_LOADER), silent={"node9": [4, 5]})
    assert [culprit.rank for culprit in summary.culprits] == [3]


def test_ten_thousand_ranks_at_as_many_places_are_one_short_sentence() -> None:
    groups = [group(rank, (frame("x" * 500, f"/{'y' * 500}/train.py", rank),)) for rank in range(10_000)]
    summary = summary_of(*groups)
    assert len(summary.sentence.encode()) <= SENTENCE_BYTES
    assert words.more_elsewhere(9995) in summary.sentence
    Failure(node_id="a", rank=0, local_rank=0, pid=1, exit_code=1, cause=summary.sentence)


STACKS = [ALL_REDUCE, BARRIER, DATA_LOADER, BACKWARD, LINEAR, SHUTDOWN, DESTROY, ()]
NUMBERS = [0, 1, 3, 120, -1, 2**31, -(2**63), 10**30]
TEXTS = ["", "\ud800", "é" * 300, "\0", "\n", "\x1b[31m", "\u2028", "\u200b", "\u202e", "a\u0301", "\U0001f600", "/a/"]


def a_text(dice: Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(TEXTS)
    highest = dice.choice([0x7F, 0xFF, 0xFFFF, 0x10FFFF])
    return "".join(chr(dice.randint(0, highest)) for _ in range(dice.randint(0, 8)))


def some_frames(dice: Random) -> tuple[Frame, ...]:
    def a_frame() -> Frame:
        return frame(a_text(dice), a_text(dice), dice.choice(NUMBERS))

    kinds = [
        lambda: dice.choice(STACKS),
        lambda: tuple(a_frame() for _ in range(dice.randint(0, 3))),
        lambda: (a_frame(),) * dice.randint(0, 60),
    ]
    return dice.choice(kinds)()


def a_group_of_any_kind(seed: int) -> StackGroup:
    dice = Random(seed)
    return StackGroup(
        ranks=tuple(dice.randint(0, 50) for _ in range(dice.randint(0, 6))),
        frames=some_frames(dice),
        state=dice.choice(list(ProcessState)),
        wchan=dice.choice([None, "futex_do_wait", "w" * 128]),
        step=dice.choice([None, 0, 1, 2, 3]),
        collective=dice.choice([None, 0, 1, 2, 3]),
    )


def an_error_of_any_kind(seed: int) -> LastError:
    dice = Random(seed)
    flags = {"is_uncaught": dice.random() < 0.5, "is_consequence": dice.random() < 0.5}
    thread = a_text(dice) if dice.random() < 0.3 else ""
    return LastError(rank=dice.randint(0, 60), error=a_text(dice), thread=thread, **flags)


seeds = st.integers(0, 2**32 - 1)
groups_of_any_kind = seeds.map(a_group_of_any_kind)
"""Each is drawn by one number: drawing all fields separately takes ten times as long."""
errors_of_any_kind = seeds.map(an_error_of_any_kind)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(groups_of_any_kind, max_size=5), max_size=6),
    st.dictionaries(st.sampled_from("abcdef"), st.lists(errors_of_any_kind, max_size=3).map(tuple), max_size=6),
    st.dictionaries(st.sampled_from("xyz"), st.lists(st.integers(40, 90), max_size=5), max_size=3),
)
def test_any_evidence_gives_a_sentence_whose_culprits_were_there(
    evidence: dict[str, list[StackGroup]], errors: dict[str, tuple[LastError, ...]], silent: dict[str, list[int]]
) -> None:
    said = {node: Evidence(groups=tuple(groups), errors=errors.get(node, ())) for node, groups in evidence.items()}
    summary = summarize(said, silent)
    ranks_of = {node: {rank for each in groups for rank in each.ranks} for node, groups in evidence.items()}
    ranks_of |= {node: set(ranks) for node, ranks in silent.items()}
    assert 0 < len(summary.sentence.encode()) <= SENTENCE_BYTES
    assert summary.sentence.isprintable()
    assert len(summary.culprits) <= MOST_CULPRITS
    assert all(culprit.rank in ranks_of[culprit.node_id] for culprit in summary.culprits)
    count = len(set().union(*ranks_of.values()) if ranks_of else set())
    assert count > len(summary.culprits) or count in (0, 1) or len(summary.culprits) == MOST_CULPRITS
    assert summarize(dict(reversed(said.items())), silent) == summary  # in any order of answers


@given(st.lists(groups_of_any_kind, max_size=40))
def test_one_nodes_groups_stay_within_the_limits(groups: list[StackGroup]) -> None:
    kept = bounded(groups)
    assert len(kept) == min(len(groups), MOST_GROUPS)
    assert all(len(each.frames) <= MOST_FRAMES for each in kept)
    assert sum(len(f.function.encode()) + len(f.file.encode()) for g in kept for f in g.frames) <= MOST_BYTES
