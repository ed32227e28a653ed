"""A console that keeps its output instead of writing it."""

from collections.abc import Callable, Sequence
from functools import partial

from rdzv_protocol.log_lines import Context

from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import ERR
from node_agent.kernel.output.sinks import Lines, Tail
from node_agent.kernel.output.streams import Relay
from node_agent.kernel.processes.process import CommandProcess
from node_agent.kernel.worker_spec import WorkerSpec
from tests.support.changes import Changes


class FakeConsole:
    """Bytes written to each file descriptor. Tests set `is_full`."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self.is_full = False
        self.held_since: float | None = None
        self.paused: list[Callable[[], None]] = []
        self.lines: list[str] = []
        """The agent's own lines."""
        self._owners: dict[int, object] = {}
        self.context: Context = {}
        self.can_redraw = self.is_json = self.is_one = False
        self._changed = Changes()

    def log(self, text: str, level: Level = Level.WARNING, event: str = "") -> None:
        self.lines.append(text)
        self._changed.set()

    def show(self, text: str, block: bytes, event: str) -> None:
        self.write(ERR, block)

    def write(self, fd: int, chunk: bytes, owner: object = None) -> None:
        self.chunks.append((fd, chunk))
        self._owners[fd] = None if chunk.endswith(b"\n") else owner
        self._changed.set()

    def owns_line(self, fd: int, owner: object) -> bool:
        return self._owners.get(fd) is owner

    @property
    def pending(self) -> int:
        return 0

    def when_drained(self, resume: Callable[[], None]) -> None:
        self.paused.append(resume)
        self._changed.set()

    def text(self, fd: int = 1) -> bytes:
        return b"".join(chunk for written, chunk in self.chunks if written == fd)

    async def until(self, holds: Callable[[], object]) -> None:
        """Return once some output makes the condition true."""
        await self._changed.until(holds)


def command_spec(
    console: FakeConsole, rank: int, local_rank: int, command: Sequence[str], environment: dict[str, str]
) -> WorkerSpec:
    """Return a worker that executes `command`, with lines that begin with `[<local rank>]:`."""
    mark = f"[{local_rank}]:"
    return WorkerSpec(
        node_id="a",
        rank=rank,
        local_rank=local_rank,
        title=command[0],
        start=partial(CommandProcess, command, environment, waits=False),
        open_streams=lambda: (
            Relay([Lines(mark, console, 1)], console),
            Relay([Lines(mark, console, 2), Tail()], console),
        ),
    )
