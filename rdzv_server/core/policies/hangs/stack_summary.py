"""Summary of the stacks of all ranks of a round that hangs: one sentence, and the ranks that the others wait for.

    15 ranks in all_reduce at train.py:88; rank 7 in DataLoader at data.py:31

Equal stacks form one cluster. Its name is the call in the user's innermost line, skipping frames of torch and of the
standard library. The first of these rules that finds any ranks decides which ranks the others wait for:

1. the process does not run (stopped, held by a debugger, in uninterruptible sleep);
2. the script has ended with an exception, while something keeps the process alive;
3. the ranks are outside the collective that the others are in;
4. the ranks are in another collective than the others;
5. the ranks are those of the only node that did not answer;
6. the ranks have begun fewer collectives than the others;
7. the ranks are at the lowest step;
8. an exception has ended a thread of the ranks, and was the last one on their stderr;
9. the ranks are elsewhere than most.

Rules 3 to 9 leave out ranks that are more than a step ahead of another one: they are beyond what the others wait for.
If no rule finds any, the sentence says so. If the run is not suspected to hang, the sentence only describes the stacks.
In a healthy run some rank is always the last, and the others do not wait for it.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.evidence import Evidence, Frame, LastError, ProcessState, StackGroup, has_ended_script
from rdzv_protocol.text import clip, printable

from rdzv_server.core.policies.hangs import words

MOST_CLUSTERS = 5
"""Number of clusters that the sentence names."""
MOST_CULPRITS = 16
LOCKSTEP = 1
"""Most steps between ranks that wait for each other in every step."""
MOST_PROBLEMS = 4
SENTENCE_BYTES = 900
NCCL_BYTES = 300
NAME_BYTES, PLACE_BYTES = 48, 96

# Patterns are compiled at the first hang, not at every start of `node-agent --standalone`.
_TORCH = r"/(?:(?:site|dist)-packages|pytorch)/torch(?:_npu|_xla)?/"
_STANDARD_LIBRARY = r"^<frozen |^<cut>|/lib(?:64)?/python3[.0-9]*/(?!site-packages/|dist-packages/)"
_PACKAGES = r"^.*/(?:site|dist)-packages/"
_IN_SCRIPT = r"^(?:<module>|_run_module_as_main|_bootstrap)$"
"""Outermost function of a main thread whose script may run: its module, its caller, or a thread that has forked."""
_NO_SCRIPT = ("<frozen ", "<cut>")
"""Prefix of the outermost frame's file if Python is still starting, or if the stack is cut off at this frame."""
_LEFT_SCRIPT = r'File ".*", line \d+, in (?:<module>|_run_module_as_main)$'
"""First frame in the traceback of an exception that has left the script."""
_COLLECTIVE = (
    r"^(?:send|recv|(?:send|recv)_object_list|batch_isend_irecv|barrier|monitored_barrier|new_\w*group\w*|split_group|"
    r"(?:init|destroy)_process_group|(?:all|reduce|broadcast|gather|scatter|permute)\w*)$"
)


class _Operation(Struct, frozen=True):
    """Operation of a user's line that calls into `file`. If `name` is empty, the called function's name is used."""

    file: str
    """End of the file's path, or a part of the path that ends with a slash."""
    name: str = ""
    waits_for_others: bool | None = False
    """Whether the operation returns only when all ranks have called it; None if Python cannot show that."""


_OPERATIONS = (
    _Operation("torch/utils/data/", "DataLoader"),
    _Operation("torch/distributed/checkpoint/", "checkpoint", None),
    _Operation("torch/distributed/rendezvous.py", "init_process_group", True),
    _Operation("torch/distributed/distributed_c10d.py", "", True),
    _Operation("torch/distributed/nn/functional.py", "", True),
    _Operation("torch/distributed/_functional_collectives.py", "", True),
    _Operation("torch/nn/parallel/", "DistributedDataParallel", None),
    _Operation("torch/distributed/fsdp/", "FSDP", None),
    _Operation("torch/_tensor.py", "", None),
    _Operation("torch/autograd/", "backward", None),
    _Operation("torch/cuda/", "", None),
    _Operation("torch/optim/", "optimizer.step", None),
)
"""Known operations. The frames below the user's line are searched for them in this order, outermost frame first."""


class Culprit(Struct, frozen=True):
    """A rank that the others wait for, according to the evidence."""

    rank: int
    node_id: str


class StackSummary(Struct, frozen=True, kw_only=True):
    """Summary of all ranks' stacks for people, with the ranks that are to blame."""

    sentence: str
    has_stacks: bool = False
    """Whether the server got evidence of any worker."""
    culprits: tuple[Culprit, ...] = ()
    """First `MOST_CULPRITS` ranks that the others wait for; empty if the evidence does not show them."""
    why: str = ""
    """Mark that singles out the culprits, such as "does not run" or "is at a lower step than the others"."""
    proves_hang: bool = False
    """Whether the mark rules out a worker that is only slow."""
    error: str = ""
    """Exception that has ended the first culprit's script, or one of its threads; empty if there is none."""
    traceback: tuple[str, ...] = ()
    """Traceback of `error`."""
    stack: tuple[str, ...] = ()
    """Python stack of the first culprit, or of the only rank, in the order of a traceback: innermost call last."""
    folder: str = ""
    """Folder of the evidence's files on the first culprit's node, or on the first node that has any."""
    folder_node: str = ""
    problems: tuple[str, ...] = ()
    """The most frequent reasons, as reported by the nodes, why evidence could not be collected."""


class _Cluster(Struct, kw_only=True):
    """Cluster of ranks at one place in the code and in one process state."""

    place: str
    state: ProcessState
    waits_for_others: bool | None
    has_ended: bool
    """Whether the script has ended but its process has not."""
    has_left: bool
    """Whether the main thread is outside its script: in an exit handler, if an exception has left the script."""
    wchan: str
    frames: tuple[Frame, ...]
    ranks: list[int]


_HALTED = (ProcessState.STOPPED, ProcessState.TRACED, ProcessState.UNINTERRUPTIBLE, ProcessState.ENDED)


class _Facts(Struct, kw_only=True):
    """Input of the rules that name the culprits."""

    clusters: Sequence[_Cluster]
    steps: dict[int, int]
    collectives: dict[int, int]
    errors: Mapping[int, LastError]
    """Exceptions at the end of the workers' stderr, by rank."""
    silent: Mapping[str, Collection[int]]
    """Ranks of the nodes that did not answer, by node id."""
    count: int


def summarize(
    evidence: Mapping[str, Evidence], silent: Mapping[str, Collection[int]], *, hangs: bool | None = True
) -> StackSummary:
    """Summarize the nodes' evidence, by node id. `silent`: ranks of the nodes that did not answer in time.

    `hangs`: whether the run hangs. If False, its steps continue and no rank is to blame; None if that is unknown.
    """
    groups = [(node, group) for node, each in sorted(evidence.items()) for group in each.groups]
    node_of = {rank: node for node, group in groups for rank in group.ranks}
    silent = {node: left for node, ranks in sorted(silent.items()) if (left := set(ranks) - node_of.keys())}
    node_of |= {rank: node for node, ranks in silent.items() for rank in ranks}
    facts = _Facts(
        clusters=_clustered([group for _, group in groups]),
        steps={rank: group.step for _, group in groups for rank in group.ranks if group.step is not None},
        collectives={rank: group.collective for _, group in groups for rank in group.ranks if group.collective},
        errors={
            error.rank: error for _, each in sorted(evidence.items()) for error in each.errors if error.rank in node_of
        },
        silent=silent,
        count=len(node_of),
    )
    mark, guilty = _verdict(facts) if hangs is not False else (None, set[int]())
    culprits = tuple(Culprit(rank, node_of[rank]) for rank in sorted(guilty)[:MOST_CULPRITS])
    first = next((cluster for cluster in facts.clusters if _is_meant(cluster, culprits, facts.count)), None)
    error = facts.errors.get(culprits[0].rank) if culprits else None
    if error and mark is not _HAS_RAISED and not _has_ended_thread(error):
        error = None
    folder_node = _node_with_files(evidence, culprits)
    parts = _sentence(facts, guilty, mark, is_verdict_due=hangs is True)
    return StackSummary(
        sentence=clip("; ".join([*parts, *_of_nccl(evidence)]), SENTENCE_BYTES),
        has_stacks=bool(facts.clusters),
        culprits=culprits,
        why=mark.words if mark else "",
        proves_hang=bool(culprits) and mark is not None and mark.proves_hang,
        error=printable(error.error) if error else "",
        traceback=tuple(map(printable, error.traceback)) if error else (),
        stack=_as_traceback(first.frames) if first else (),
        folder=printable(evidence[folder_node].folder) if folder_node else "",
        folder_node=folder_node,
        problems=_problems(evidence.values()),
    )


def _is_meant(cluster: _Cluster, culprits: Sequence[Culprit], count: int) -> bool:
    """Return whether the cluster contains the first culprit or, if there is none, the only rank."""
    return culprits[0].rank in cluster.ranks if culprits else count == 1


def _node_with_files(evidence: Mapping[str, Evidence], culprits: Sequence[Culprit]) -> str:
    nodes = [*(culprit.node_id for culprit in culprits), *sorted(evidence)]
    return next((node for node in nodes if node in evidence and evidence[node].folder), "")


def _problems(evidence: Iterable[Evidence]) -> tuple[str, ...]:
    problems = Counter(printable(problem) for each in evidence for problem in each.problems)
    return tuple(
        problem for problem, _ in sorted(problems.items(), key=lambda item: (-item[1], item[0]))[:MOST_PROBLEMS]
    )


def _of_nccl(evidence: Mapping[str, Evidence]) -> Iterable[str]:
    """Yield what NCCL reports about its communicators, which number ranks differently."""
    lines = next((each.nccl for _, each in sorted(evidence.items()) if each.nccl), ())
    if lines:
        yield clip(printable(words.nccl_says([line.strip() for line in lines])), NCCL_BYTES)


# Clusters.


def _clustered(groups: Sequence[StackGroup]) -> list[_Cluster]:
    """Return clusters of equal stacks, the largest first; each rank is in one cluster."""
    clusters: dict[tuple[str, ProcessState, bool], _Cluster] = {}
    seen: set[int] = set()
    for group in groups:
        place, waits = place_of(group.frames)
        has_left = _has_left(group.frames)
        cluster = clusters.setdefault(
            (place, group.state, has_left),
            _Cluster(
                place=place,
                state=group.state,
                waits_for_others=waits,
                has_ended=has_ended_script(group.frames),
                has_left=has_left,
                wchan=clip(printable(group.wchan or ""), NAME_BYTES),
                frames=group.frames,
                ranks=[],
            ),
        )
        cluster.ranks += [rank for rank in group.ranks if rank not in seen]
        seen.update(group.ranks)
    for cluster in clusters.values():
        cluster.ranks.sort()
    return sorted((each for each in clusters.values() if each.ranks), key=lambda each: (-len(each.ranks), each.ranks))


def place_of(frames: Sequence[Frame]) -> tuple[str, bool | None]:
    """Return the place of a stack, such as "all_reduce at train.py:88", and whether it waits for other ranks.

    The place is empty if there is no stack; the second value is None if that is unknown.
    """
    if not frames:
        return "", None
    user = _first(frames, lambda path: not re.search(_STANDARD_LIBRARY, path) and not re.search(_TORCH, path))
    at = frames[user]
    if has_ended_script(frames):
        return words.interpreter_shutdown(_short(at.file), at.line), False
    called = list(reversed(frames[:user]))  # outermost first
    operation, waits = _operation(called)
    return words.place(clip(printable(operation or at.function), NAME_BYTES), _short(at.file), at.line), waits


def _has_left(frames: Sequence[Frame]) -> bool:
    """Return whether this is the stack of a main thread outside its script, as in a function that `atexit` calls.

    Greenlets, and compiled or embedding programs, have such stacks as well while they run.
    """
    if not frames or frames[-1].file.startswith(_NO_SCRIPT):
        return False
    return not re.match(_IN_SCRIPT, frames[-1].function.rpartition(".")[2])


def _first(frames: Sequence[Frame], is_wanted: Callable[[str], bool]) -> int:
    """Return the index of the innermost frame whose file is wanted; 0 if there is none."""
    return next((index for index, frame in enumerate(frames) if is_wanted(frame.file)), 0)


def _operation(called: Sequence[Frame]) -> tuple[str, bool | None]:
    """Return the operation in the called frames, and whether it waits for other ranks; None if that is unknown."""
    for operation in _OPERATIONS:
        for frame in called:
            name = operation.name or _public_name(frame.function)
            if name and operation.file in frame.file:
                waits = operation.waits_for_others
                return name, bool(re.match(_COLLECTIVE, name)) if waits else waits
    is_own_work = called and not any(re.search(_TORCH, frame.file) for frame in called)
    return next(filter(None, (_public_name(frame.function) for frame in called)), ""), False if is_own_work else None


def _public_name(function: str) -> str:
    """Return the function's name without its class; empty for a function that programs do not call by name."""
    name = function.rpartition(".")[2]
    return "" if name.startswith(("_", "<")) or name == "wrapper" else name


def _short(path: str) -> str:
    """Return the name of a file, or its path inside an installed package."""
    in_package = re.sub(_PACKAGES, "", path)
    short = path.rpartition("/")[2] if in_package == path else in_package
    return clip(printable(short), PLACE_BYTES)


# The ranks that the others wait for.


class _Mark(Struct, frozen=True):
    """Mark that singles ranks out."""

    words: str
    find: Callable[[_Facts], set[int]]
    proves_hang: bool = False
    """Whether the mark rules out a worker that is only slow."""


def _verdict(facts: _Facts) -> tuple[_Mark | None, set[int]]:
    in_step = _without(facts, _ahead(facts.steps))
    for mark in _MARKS:
        seen = facts if mark.proves_hang else in_step
        guilty = mark.find(seen)
        if guilty and (len(guilty) < seen.count or seen.count == 1):
            return mark, guilty
    return None, set()


def _ahead(steps: Mapping[int, int]) -> set[int]:
    """Return the ranks that are more than a step ahead of another one. They do not hold it up: they are beyond it.

    They may work in another group of ranks, or have left out the collective that others wait in.
    """
    lowest = min(steps.values(), default=0)
    return {rank for rank, step in steps.items() if step > lowest + LOCKSTEP}


def _without(facts: _Facts, left_out: Collection[int]) -> _Facts:
    """Return the facts about the other ranks."""
    if not left_out:
        return facts
    others = [replace(each, ranks=[rank for rank in each.ranks if rank not in left_out]) for each in facts.clusters]
    return replace(
        facts,
        clusters=sorted((each for each in others if each.ranks), key=lambda each: (-len(each.ranks), each.ranks)),
        steps={rank: step for rank, step in facts.steps.items() if rank not in left_out},
        collectives={rank: number for rank, number in facts.collectives.items() if rank not in left_out},
        count=facts.count - len(left_out),
    )


def _halted(facts: _Facts) -> set[int]:
    return _ranks(facts, lambda cluster: cluster.state in _HALTED)


def _raised(facts: _Facts) -> set[int]:
    """Return the ranks whose script has ended with an exception that is not the consequence of another worker's end.

    If there is no stack, torch's mark counts: a child process, which has the same stderr, may have died of the
    exception. A main thread outside its script is in an exit handler if the exception has left that script.
    """
    ended = _ranks(facts, lambda cluster: cluster.has_ended)
    leaving = _ranks(facts, lambda cluster: cluster.place.startswith("destroy_process_group "))
    ended |= leaving if len(leaving) < facts.count else set()
    own = {rank: error for rank, error in facts.errors.items() if not error.is_consequence}
    outside = _ranks(facts, lambda cluster: cluster.has_left)
    ended |= {rank for rank, error in own.items() if rank in outside and _has_left_script(error)}
    seen = _ranks(facts, lambda cluster: bool(cluster.place))
    return {rank for rank, error in own.items() if rank in ended or (error.is_uncaught and rank not in seen)}


def _has_left_script(error: LastError) -> bool:
    """Return whether the exception has ended the script: torch marks it, or its traceback begins in the script's
    module.
    """
    first = next((line for line in error.traceback[1:] if line.lstrip(" |").startswith("File ")), "")
    return error.is_uncaught or bool("Traceback (" in "".join(error.traceback[:1]) and re.search(_LEFT_SCRIPT, first))


def _elsewhere(facts: _Facts) -> set[int]:
    """Return the ranks outside the collective that the others wait in.

    Ranks for which that is unknown count only if at least as many others are surely in a collective.
    """
    waiting = _ranks(facts, lambda cluster: cluster.waits_for_others is True)
    surely = _ranks(facts, lambda cluster: cluster.waits_for_others is False)
    perhaps = _ranks(facts, lambda cluster: cluster.waits_for_others is None and bool(cluster.place))
    if not waiting:
        return set()
    return surely or (perhaps if len(perhaps) <= len(waiting) else set())


def _in_another_collective(facts: _Facts) -> set[int]:
    """Return the ranks apart from the majority, if all are in some collective and more than half of them at one
    place."""
    waiting = [cluster for cluster in facts.clusters if cluster.waits_for_others]
    return _lesser_part(waiting, facts.count) if len(waiting) == len(facts.clusters) > 1 else set()


def _silent(facts: _Facts) -> set[int]:
    """Return the ranks of the only node that did not answer. If several did not, the server may just not reach some."""
    are_waiting = facts.clusters and all(cluster.waits_for_others for cluster in facts.clusters)
    return _silent_ranks(facts) if are_waiting and len(facts.silent) == 1 else set()


def _silent_ranks(facts: _Facts) -> set[int]:
    return {rank for ranks in facts.silent.values() for rank in ranks}


def _behind(of: Callable[[_Facts], dict[int, int]]) -> Callable[[_Facts], set[int]]:
    def behind(facts: _Facts) -> set[int]:
        numbers = of(facts)
        lowest = min(numbers.values(), default=0)
        return {rank for rank, number in numbers.items() if number == lowest} if len(numbers) == facts.count else set()

    return behind


def _lost_thread(facts: _Facts) -> set[int]:
    """Return the ranks that have lost a thread by an exception which does not follow from another worker's end."""
    ranks = _ranks(facts, lambda cluster: True)
    return {rank for rank, error in facts.errors.items() if rank in ranks and _has_ended_thread(error)}


def _has_ended_thread(error: LastError) -> bool:
    return bool(error.thread) and not error.is_consequence


def _elsewhere_than_most(facts: _Facts) -> set[int]:
    seen = [cluster for cluster in facts.clusters if cluster.place]
    return _lesser_part(seen, facts.count) if facts.count > 2 else set()


_HAS_RAISED = _Mark(words.HAS_RAISED, _raised, proves_hang=True)
_MARKS = (
    _Mark(words.DOES_NOT_RUN, _halted, proves_hang=True),
    _HAS_RAISED,
    _Mark(words.OUTSIDE_COLLECTIVE, _elsewhere),
    _Mark(words.IN_ANOTHER_COLLECTIVE, _in_another_collective),
    _Mark(words.DID_NOT_ANSWER, _silent),
    _Mark(words.FEWER_COLLECTIVES, _behind(lambda facts: facts.collectives)),
    _Mark(words.LOWER_STEP, _behind(lambda facts: facts.steps)),
    _Mark(words.LOST_THREAD, _lost_thread),
    _Mark(words.ELSEWHERE, _elsewhere_than_most),
)


def _lesser_part(clusters: Sequence[_Cluster], count: int) -> set[int]:
    """Return the ranks of all but the largest cluster, if that has more than half of `count`."""
    if not clusters or len(clusters[0].ranks) * 2 <= count:
        return set()
    return {rank for cluster in clusters[1:] for rank in cluster.ranks}


def _ranks(facts: _Facts, is_meant: Callable[[_Cluster], bool]) -> set[int]:
    return {rank for cluster in facts.clusters if is_meant(cluster) for rank in cluster.ranks}


# The sentence.


def _sentence(
    facts: _Facts,
    guilty: set[int],
    mark: _Mark | None,
    *,
    is_verdict_due: bool,
) -> list[str]:
    named = _named_clusters(facts.clusters, guilty)
    parts = [words.ranks_at(each.ranks, facts.count, each.place, each.state, each.wchan) for each in named]
    if more := sum(len(each.ranks) for each in facts.clusters) - sum(len(each.ranks) for each in named):
        parts.append(words.more_elsewhere(more))
    if silent := facts.silent:
        first, more = clip(next(iter(silent)), 64), len(silent) - 1
        parts.append(words.no_answer_from(sorted(_silent_ranks(facts)), facts.count, first, more))
    if not parts:
        return [words.NO_EVIDENCE]
    if mark and facts.count > 1 and (mark is _HAS_RAISED or not _is_obvious(facts, guilty)):
        parts.append(words.blame(sorted(guilty), mark.words))
    elif facts.count > 1 and not guilty and is_verdict_due:
        parts.append(words.CULPRIT_UNKNOWN)
    if lost := sorted(rank for rank, error in facts.errors.items() if _has_ended_thread(error)):
        first_lost = next((rank for rank in lost if rank in guilty), lost[0])
        error = facts.errors[first_lost]
        parts.append(words.thread_ended(first_lost, error.thread, error.error, len(lost) - 1))
    return parts


def _is_obvious(facts: _Facts, guilty: set[int]) -> bool:
    """Return whether the clusters show it already: all ranks but a few are at one place, and those few are to blame."""
    places = [set(cluster.ranks) for cluster in facts.clusters] + ([_silent_ranks(facts)] if facts.silent else [])
    return len(places) == 2 and guilty == places[1] and len(places[0]) > len(places[1])


def _named_clusters(clusters: Sequence[_Cluster], guilty: set[int]) -> Sequence[_Cluster]:
    """Return the clusters to name in the sentence: the largest ones, and the first with a rank that is to blame."""
    if len(clusters) <= MOST_CLUSTERS:
        return clusters
    largest = list(clusters[: MOST_CLUSTERS - 1])
    to_blame = (each for each in clusters[MOST_CLUSTERS - 1 :] if not guilty.isdisjoint(each.ranks))
    return [*largest, next(to_blame, clusters[MOST_CLUSTERS - 1])]


def _as_traceback(frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(frames))
