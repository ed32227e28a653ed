"""Exit codes of the programs, which schedulers act on: docs/exit-codes.md has what each of them should do.

The first three are torchrun's; the others are those of `sysexits.h`, which systemd shows by name.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a scheduler should do when `node-agent` or `rdzv-server` ends; a script, when `rdzvctl` does."""

    SUCCEEDED = 0
    """The run succeeded; the server was stopped."""
    FAILED = 1
    """The run failed, or this program has a bug: the verdict, for the whole job."""
    BAD_INPUT = 2
    """The command line, or a file that it names, makes no sense. Nothing was started; it will happen again."""
    NO_PROGRESS = 70
    """The run failed since restarts got it no further (EX_SOFTWARE): a person has to look at program and data."""
    NODE_UNFIT = 71
    """This node cannot do its part (EX_OSERR): replace it, and start the agent elsewhere."""
    START_AGAIN = 75
    """The agent was told to leave, or its server is out of reach (EX_TEMPFAIL): start it again, here or elsewhere."""
    REFUSED = 77
    """The server does not let this agent in (EX_NOPERM), by its token or the run's settings. Do not retry."""

    @property
    def as_torchruns(self) -> "ExitCode":
        """What torchrun exits with in this case: 0, 2 for a command line that makes no sense, else 1."""
        return self if self in (ExitCode.SUCCEEDED, ExitCode.BAD_INPUT) else ExitCode.FAILED
