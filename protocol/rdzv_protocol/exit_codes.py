"""Exit codes of the programs, which schedulers act on: see docs/reference/exit-codes.md.

The first three are torchrun's; the others are those of `sysexits.h`, which systemd shows by name.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `node-agent` and `rdzv-server`, for schedulers, and of `rdzvctl`, for scripts."""

    SUCCEEDED = 0
    """Success: the run succeeded, or the server was stopped."""
    FAILED = 1
    """Failure of the run, or a bug of this program: final for the whole job."""
    BAD_INPUT = 2
    """Mistake in the command line or in a file that it names. Nothing was started; another try would fail, too."""
    NO_PROGRESS = 70
    """Failure of a run after restarts without progress (EX_SOFTWARE): a person has to look at program and data."""
    NODE_UNFIT = 71
    """Unfit node, which cannot do its part (EX_OSERR): replace it, and start the agent elsewhere."""
    START_AGAIN = 75
    """Departure of an agent that was asked to leave or has lost its server (EX_TEMPFAIL): start it again anywhere."""
    REFUSED = 77
    """Refusal by the server (EX_NOPERM), because of the agent's token or the run's settings. Do not retry."""

    @property
    def as_torchruns(self) -> "ExitCode":
        """Exit code of torchrun in the same case: 0, 2 for a mistake in the command line, else 1."""
        return self if self in (ExitCode.SUCCEEDED, ExitCode.BAD_INPUT) else ExitCode.FAILED
