"""torchrun where it waits for timers of its own for half a minute or more, in several scenarios at once.

While it waits it uses hardly any CPU, so the scenarios do not disturb each other, and the figures are those of the
timers.
"""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from benchmarks.launchers import Plan
from benchmarks.recoveries import ELASTIC, NOTICED, REPLACEMENT, SCALE_UP, SILENT, UNNOTICED
from benchmarks.results import Row
from benchmarks.stage import Broken

SCENARIOS = (ELASTIC, NOTICED, UNNOTICED, SILENT, SCALE_UP, REPLACEMENT)
CALLERS = 10
"""Number of scenarios at once: two agents each, of 220 MB each."""
CAP_S = 600.0
END_S = 30.0
"""Most seconds that a scenario may take to end its own processes. It is killed after that."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Call = Callable[[], list[float]]
Answer = tuple[list[float], str]
"""The samples of a call, or why there are none."""


def measure(plan: Plan) -> list[Row]:
    """Measure one sample of each scenario. The rows belong to the lines of the scenarios."""
    forms = plan.torchruns(least_timers=True)
    cases = [(scenario, form) for scenario in SCENARIOS for form in forms if form.name in scenario.slow]
    answers = at_once([partial(scenario.sample, form, 1) for scenario, form in cases])
    return [
        Row(
            measurement=scenario.measurement, subject=form.name, unit=scenario.unit, cap=scenario.cap,
            samples=samples, trouble=trouble,
        )
        for (scenario, form), (samples, trouble) in zip(cases, answers, strict=True)
    ]  # fmt: skip


def at_once(calls: Sequence[Call]) -> list[Answer]:
    """Return the answer of each call. Several calls run at once, each in its own process.

    Raises `Broken` if a process still runs after `CAP_S` seconds. No process outlives this function.
    """
    answers: dict[int, Answer] = {}
    processes: dict[Connection, tuple[int, BaseProcess]] = {}
    waiting, deadline_s = deque(enumerate(calls)), time.monotonic() + CAP_S
    try:
        while waiting or processes:
            while waiting and len(processes) < CALLERS:
                number, call = waiting.popleft()
                with _signals_held() as mask:
                    reader, process = _start(call, mask)
                    processes[reader] = number, process
            ready = wait(list(processes), deadline_s - time.monotonic())
            if not ready:
                raise Broken(f"{len(processes)} scenarios have no sample after {CAP_S:g} s")
            for reader in (each for each in processes if each in ready):
                number, process = processes[reader]
                answers[number] = _received(reader, process)
            processes = {reader: each for reader, each in processes.items() if each[0] not in answers}
    finally:
        for _, process in processes.values():
            process.terminate()
        for _, process in processes.values():
            _end(process)
    return [answers[number] for number in range(len(calls))]


@contextmanager
def _signals_held() -> Iterator[Collection[int]]:
    """Hold back signals until this process knows a new process, which then sets its own handlers. Yield the mask from
    before, which the new process restores after that.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(call: Call, mask: Collection[int]) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, writer, mask), daemon=True)
    process.start()
    writer.close()
    return reader, process


def _answer(call: Call, writer: Connection, mask: Collection[int]) -> None:
    for signum in SIGNALS:
        signal.signal(signum, _leave)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        writer.send((call(), ""))
    except (Broken, OSError) as error:
        writer.send(([], str(error) or repr(error)))


def _received(reader: Connection, process: BaseProcess) -> Answer:
    with reader:
        try:
            answer: Answer = reader.recv()
        except EOFError:
            answer = [], ""
    _end(process)
    return answer if any(answer) else ([], f"the scenario's process has ended with {process.exitcode}")


def _end(process: BaseProcess) -> None:
    """Wait until a process that answered or got SIGTERM has ended. Kill it if it hangs."""
    process.join(END_S)
    process.kill()
    process.join()


def _leave(signum: int, frame: FrameType | None) -> None:
    """Raise `SystemExit`, so that all processes are ended; ignore later signals, since Ctrl-C reaches all processes."""
    for each in SIGNALS:
        signal.signal(each, lambda *args: None)
    raise SystemExit(128 + signum)
