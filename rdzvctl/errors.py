"""Errors that end a command, each with its exit code.

CtlError
├── BadInput      2   the command line or the configuration file has a mistake
├── Refused       1   there is no such run or node, or the server refuses the action now
├── TooOld        1   the server does not report what the command needs
├── Unreachable  75   no server answers, or none of them leads
└── KeptOut      77   the server requires another token, or another certificate
"""

from collections.abc import Mapping

import rdzv_protocol
from rdzv_protocol.exit_codes import ExitCode

from rdzvctl import words


class CtlError(Exception):
    """Error that ends a command: one line that says what is wrong, and further lines that help."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *help_lines: str) -> None:
        super().__init__(message)
        self.help_lines = help_lines


class BadInput(CtlError):
    exit_code = ExitCode.BAD_INPUT


class Refused(CtlError):
    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *help_lines: str, code: str = "") -> None:
        """`code`: code of the server's refusal (`rdzv_protocol.errors`); empty if no server has refused."""
        super().__init__(message, *help_lines)
        self.code = code


class TooOld(CtlError):
    exit_code = ExitCode.FAILED

    def __init__(self, field: str, versions: Mapping[str, str] | None = None) -> None:
        """`field`: name of the missing field. `versions`: versions of the servers that were asked, by address."""
        super().__init__(words.connection.lacks_field(versions or {}, field), _remedy(versions or {}))
        self.field = field


class Unreachable(CtlError):
    exit_code = ExitCode.START_AGAIN
    is_sent = False
    """Whether a server may have received the request, and may carry it out."""


class KeptOut(CtlError):
    exit_code = ExitCode.REFUSED


def _remedy(versions: Mapping[str, str]) -> str:
    """Return advice about a server that lacks something. Equal version numbers do not show which program is older."""
    if rdzv_protocol.VERSION in versions.values():
        return words.connection.OTHER_BUILD
    return words.connection.OTHER_VERSION
