"""Real forks: what the command inherits, and what the parent learns if it cannot be executed."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress

import pytest

from node_agent.kernel.processes.forking import Fork, NotSetUp

FAILED = 255


class Pipe:
    """Pipe that a command writes to."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def text(self) -> str:
        """Return all that was written, once no other process can write."""
        os.close(self.writer)
        with open(self.reader) as reader:
            return reader.read()

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with closing(Pipe()) as pipe:
        yield pipe


@pytest.fixture
def other_pipe() -> Iterator[Pipe]:
    with closing(Pipe()) as pipe:
        yield pipe


def forked(
    *command: str,
    streams: Mapping[int, int] = {},
    passed: Collection[int] = (),
    set_up: Callable[[], None] = lambda: None,
) -> Fork:
    return Fork(command, {"PATH": os.environ["PATH"], "WORD": "hello"}, streams, passed, set_up)


def end(fork: Fork) -> int:
    """Return the exit code of the child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])


def test_a_command_is_found_on_the_path_and_gets_its_streams_and_its_environment(pipe):
    fork = forked("sh", "-c", "echo $WORD", streams={1: pipe.writer})
    fork.wait_until_executed()
    assert (pipe.text(), end(fork)) == ("hello\n", 0)


def test_a_command_leads_its_own_session(pipe):
    fork = forked("sleep", "1000")
    fork.wait_until_executed()
    assert os.getsid(fork.pid) == fork.pid
    os.kill(fork.pid, signal.SIGKILL)
    assert end(fork) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "error"),
    [("/nowhere", FileNotFoundError), ("no-such-command", FileNotFoundError), ("/", PermissionError)],
)
def test_the_error_of_a_command_that_cannot_be_executed_reaches_the_parent(command, error):
    before = len(os.listdir("/proc/self/fd"))
    fork = forked(command)
    with pytest.raises(error) as caught:
        fork.wait_until_executed()
    assert caught.value.filename == command
    assert end(fork) == FAILED
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("raised", "number"), [(OSError(errno.ESRCH, "gone"), errno.ESRCH), (ValueError("no number"), errno.EINVAL)]
)
def test_a_child_that_cannot_be_set_up_executes_nothing(pipe, raised, number):
    def set_up() -> None:
        raise raised

    fork = forked("echo", streams={1: pipe.writer}, set_up=set_up)
    with pytest.raises(NotSetUp) as caught:
        fork.wait_until_executed()
    assert (caught.value.errno, pipe.text(), end(fork)) == (number, "", FAILED)


def test_a_child_that_is_killed_before_it_executes_its_command_is_only_gone(pipe):
    fork = forked("true", set_up=lambda: os.kill(os.getpid(), signal.SIGKILL))
    fork.wait_until_executed()
    assert end(fork) == -signal.SIGKILL


def test_a_slow_set_up_of_a_child_does_not_delay_the_others(pipe):
    slow = forked("true", set_up=lambda: os.read(pipe.reader, 1))
    quick = forked("true")
    quick.wait_until_executed()
    assert end(quick) == 0
    os.write(pipe.writer, b"x")
    slow.wait_until_executed()
    assert end(slow) == 0


def test_streams_may_be_exchanged(pipe, other_pipe):
    def set_up() -> None:
        os.dup2(pipe.writer, 1)
        os.dup2(other_pipe.writer, 2)

    fork = forked("sh", "-c", "echo out; echo err >&2", streams={1: 2, 2: 1}, set_up=set_up)
    fork.wait_until_executed()
    assert (other_pipe.text(), pipe.text(), end(fork)) == ("out\n", "err\n", 0)


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_command_inherits_only_the_descriptors_that_are_passed_to_it(pipe, other_pipe, monkeypatch, has_proc):
    if not has_proc:
        monkeypatch.setattr(os, "listdir", lambda path: os.open(f"/nowhere{path}", os.O_RDONLY))
    os.set_inheritable(other_pipe.writer, True)
    script = f"import os; os.write({pipe.writer}, b'out'); os.fstat({other_pipe.writer})"
    with open(os.devnull, "w") as nowhere:
        fork = forked(sys.executable, "-ISc", script, passed=[pipe.writer], streams={2: nowhere.fileno()})
    fork.wait_until_executed()
    assert (pipe.text(), end(fork)) == ("out", 1)


def test_signals_that_python_ignores_end_a_command():
    fork = forked("sh", "-c", "kill -PIPE $$; exit 0")
    fork.wait_until_executed()
    assert end(fork) == -signal.SIGPIPE
