"""What mostly waits for timers is watched at the same time, each in a process of its own, with children of its own."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import FrameType

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
