"""Files of tokens, as the flags name them.

# a comment
TOKEN                   good for every run
TOKEN team-a-*          an agents' token for the runs whose ids match, as file names match a pattern
TOKEN team-a-* 20       the same, for at most 20 of them at a time
"""

import os
import stat
from collections.abc import Iterator, Mapping

from rdzv_server.auth.authorization import ANY_RUN, Role, Token

FLAGS: Mapping[Role, str] = {
    Role.AGENT: "--token-file",
    Role.READ: "--read-token-file",
    Role.ADMIN: "--admin-token-file",
}


class BadTokenFile(Exception):
    """One line that names the flag and the file, and tells nothing of what is in it."""


class TokenFiles:
    """The files of one server, by role."""

    def __init__(self, files: Mapping[Role, str]) -> None:
        """Raises `BadTokenFile` if agents would be the only ones without a token."""
        self._files = files
        if files and Role.AGENT not in files:
            flag = FLAGS[next(iter(files))]
            raise BadTokenFile(f"{flag} needs --token-file, too: without it no agent could take part")

    def read(self) -> list[Token]:
        """Tokens that they hold now. Raises `BadTokenFile`."""
        return [token for role, path in self._files.items() for token in _read(role, path)]

    def warnings(self) -> Iterator[str]:
        """What is wrong with them, though they can be used."""
        for role, path in self._files.items():
            if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
                yield f"{FLAGS[role]} {path}: others than its owner can read it; chmod 600 ends that"


def _read(role: Role, path: str) -> list[Token]:
    name = f"{FLAGS[role]} {path}"
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.split() for line in file if line.split() and not line.lstrip().startswith("#")]
    except UnicodeDecodeError:
        raise BadTokenFile(f"{name}: only printable ASCII, please") from None
    except OSError as error:
        raise BadTokenFile(f"{name}: {error.strerror or error}") from None
    if not lines:
        raise BadTokenFile(f"{name}: there is no token in it; put one of printable ASCII on a line of its own")
    return [_token(role, words, name) for words in lines]


def _token(role: Role, words: list[str], name: str) -> Token:
    if not all(word.isprintable() for word in words):
        raise BadTokenFile(f"{name}: only printable ASCII, please")
    match words:
        case [secret]:
            return Token(role, secret.encode())
        case [secret, runs] if role is Role.AGENT or runs == ANY_RUN:
            return Token(role, secret.encode(), runs)
        case [secret, runs, most] if role is Role.AGENT and most.isdigit() and int(most) > 0:
            return Token(role, secret.encode(), runs, int(most))
        case [_, _]:
            raise BadTokenFile(f"{name}: only agents' tokens can be for some runs alone")
    raise BadTokenFile(f"{name}: each line holds TOKEN, TOKEN RUN_ID_PATTERN or TOKEN RUN_ID_PATTERN MOST_RUNS")
