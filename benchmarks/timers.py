"""torchrun where it waits for timers of its own for half a minute and more, in several scenarios at the same time.

While it waits it takes hardly any CPU, so that one does not disturb another: what is measured are its timers.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType

from benchmarks.launchers import Launcher, Plan
from benchmarks.membership import NOTICED, REPLACEMENT, SCALE_UP, SILENT, UNNOTICED
from benchmarks.recovery import ELASTIC
from benchmarks.results import Row
from benchmarks.scenario import Scenario
from benchmarks.stage import Broken

Call = Callable[[], list[float]]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FORK = multiprocessing.get_context("fork")


def at_once(calls: Sequence[Call]) -> list[list[float] | Broken]:
    """What each came to, in their order."""
    pipes = [_FORK.Pipe(duplex=False) for _ in calls]
    processes = [_FORK.Process(target=_answer, args=(call, end)) for call, (_, end) in zip(calls, pipes, strict=True)]
    try:
        for process, (_, end) in zip(processes, pipes, strict=True):
            process.start()
            end.close()
        return [_receive(mine) for mine, _ in pipes]
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _answer(call: Call, end: Connection) -> None:
    for signum in SIGNALS:
        signal.signal(signum, _leave)
    try:
        end.send(call())
    except (Broken, OSError) as error:
        end.send(Broken(str(error) or repr(error)))


def _leave(signum: int, frame: FrameType | None) -> None:
    """Unwind, so that every process is ended, and let no second signal disturb that: Ctrl-C reaches all processes."""
    for each in SIGNALS:
        signal.signal(each, lambda *args: None)
    raise SystemExit(128 + signum)


def _receive(mine: Connection) -> list[float] | Broken:
    try:
        answer: list[float] | Broken = mine.recv()
    except EOFError:
        return Broken("its process ended early")
    return answer


SCENARIOS = (ELASTIC, NOTICED, UNNOTICED, SILENT, SCALE_UP, REPLACEMENT)
AT_ONCE = 10
"""Two agents each, of 220 MB each."""

Case = tuple[Scenario, Launcher]


def measure(plan: Plan) -> list[Row]:
    """One sample each. The rows belong to the lines of their scenarios."""
    cases = list(_cases(plan))
    batches = [cases[first : first + AT_ONCE] for first in range(0, len(cases), AT_ONCE)]
    return [row for batch in batches for row in _watch(batch)]


def _cases(plan: Plan) -> Iterator[Case]:
    for scenario in SCENARIOS:
        for form in plan.torchruns(least_timers=True):
            if form.name in scenario.slow:
                yield scenario, form


def _watch(batch: Sequence[Case]) -> Iterator[Row]:
    answers = at_once([partial(scenario.sample, form, 1) for scenario, form in batch])
    for (scenario, form), answer in zip(batch, answers, strict=True):
        is_broken = isinstance(answer, Broken)
        yield Row(
            measurement=scenario.measurement, subject=form.name, unit=scenario.unit, cap=scenario.cap,
            samples=() if isinstance(answer, Broken) else answer, trouble=str(answer) if is_broken else "",
        )  # fmt: skip
