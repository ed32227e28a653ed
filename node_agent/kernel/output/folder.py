"""The folder of one agent's log files and error files: `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`."""

import os

from node_agent import words
from node_agent.kernel.core.log_options import LogOptions, Std
from node_agent.kernel.processes.temp_dir import TempDir, temporary_path

LONGEST_NAME = 120
"""Most bytes of the run's id in a folder name. A file name has at most 255 bytes, and a random part follows."""
_PLAIN = frozenset("-_.,:;+=@%~")


class RunFolder:
    """Folder of one agent's files, made on first use. Every method may raise `OSError`.

    Without `--log-dir` it is temporary and belongs to the agent, unless the user asked for files, which must then
    remain.
    """

    def __init__(self, options: LogOptions, run_id: str, temp_dir: TempDir) -> None:
        self._is_temporary = options.log_dir is None
        parent = options.log_dir or temporary_path("node-agent-logs")
        self._kept_path = os.path.join(os.path.abspath(parent), f"{folder_name(run_id)}_{os.urandom(8).hex()}")
        self._temp_dir = temp_dir
        self.parent = parent
        """Folder in which the run's folder is made, unless that is temporary."""
        self.made = ""
        """The run's folder, empty until it is first used."""
        self._attempt = -1
        self.is_kept = options.log_dir is not None or wants_files(options)
        """Whether the folder remains when the agent exits."""
        self.will_have = self._kept_path if wants_files(options) else ""
        """Folder in which there will be log files, whether it exists yet or not; empty if there will be none."""

    def make(self) -> str:
        """Make the run's folder, unless it exists, and return it. A temporary one that was removed is made again."""
        if not (self.made and self.is_kept):
            self.made = self._make_kept() if self.is_kept else self._made_temporary()
        return self.made

    def open_attempt(self, round_: int, workers: int) -> str:
        """Make and return a new folder, with one for each local rank in it.

        Its number follows torchrun and begins with 0. If this agent has used the number, it takes another one: a server
        that has lost its state counts rounds from the start.
        """
        self._attempt = max(round_ - 1, self._attempt + 1)
        attempt = os.path.join(self.make(), f"attempt_{self._attempt}")
        os.makedirs(attempt)
        for local_rank in range(workers):
            os.mkdir(f"{attempt}/{local_rank}")
        return attempt

    def _made_temporary(self) -> str:
        self._temp_dir.make()
        return self._temp_dir.folder

    def _make_kept(self) -> str:
        parent = os.path.dirname(self._kept_path)
        if self._is_temporary:
            os.mkdir(parent, mode=0o700)
        os.makedirs(parent, exist_ok=True)
        os.mkdir(self._kept_path)
        return self._kept_path


def folder_name(run_id: str) -> str:
    """Return the run id as the beginning of a folder's name: readable, safe in a shell, and without path separators."""
    name = "".join(character if character.isalnum() or character in _PLAIN else "_" for character in run_id)
    if name.startswith((".", "-", "~")):
        name = "_" + name[1:]
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def wants_files(options: LogOptions) -> bool:
    """Return whether the user asked for a file."""
    asked = (options.redirects, options.tee)
    streams = (bool(ask) if isinstance(ask, Std) else any(ask.values()) for ask in asked)
    return any(streams) or bool(options.stdout_filters or options.stderr_filters)


def why_unusable(log_dir: str) -> str | None:
    """Make the folder. Return why it takes no files, None if it does."""
    try:
        os.makedirs(log_dir, exist_ok=True)
    except FileExistsError:
        return words.output.log_dir_is_a_file(log_dir)
    except OSError as error:
        return words.output.log_dir_not_made(log_dir, error.strerror or str(error))
    return None if os.access(log_dir, os.W_OK | os.X_OK) else words.output.log_dir_not_writable(log_dir)
