"""Files of tokens, as the flags name them.

# a comment
TOKEN                   good for every run
TOKEN team-a-*          an agents' token for the runs whose ids match, as file names match a pattern
TOKEN team-a-* 20       the same, for at most 20 of them at a time
"""

from rdzv_server.auth.authorization import ANY_RUN, Role, Token


class BadTokenFile(ValueError):
    """Fault of a token file, in one line that names the flag and the file, and tells none of its contents."""


def read_tokens(role: Role, flag: str, path: str) -> list[Token]:
    """Tokens that a file holds now. Raises `BadTokenFile`."""
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.split() for line in file if line.split() and not line.lstrip().startswith("#")]
    except UnicodeDecodeError:
        raise BadTokenFile(f"{flag} {path}: only printable ASCII, please") from None
    except OSError as error:
        raise BadTokenFile(f"{flag} {path}: {error.strerror or error}") from None
    if not lines:
        raise BadTokenFile(f"{flag} {path}: there is no token in it; put one of printable ASCII on a line of its own")
    try:
        return [_token(role, words) for words in lines]
    except ValueError as error:
        raise BadTokenFile(f"{flag} {path}: {error}") from None


def _token(role: Role, words: list[str]) -> Token:
    if not all(word.isprintable() for word in words):
        raise ValueError("only printable ASCII, please")
    match words:
        case [secret]:
            return Token(role, secret.encode())
        case [secret, runs] if role is Role.AGENT or runs == ANY_RUN:
            return Token(role, secret.encode(), runs)
        case [secret, runs, most] if role is Role.AGENT and most.isdigit() and int(most) > 0:
            return Token(role, secret.encode(), runs, int(most))
        case [_, _]:
            raise ValueError("only agents' tokens can be for some runs alone")
    raise ValueError("each line holds TOKEN, TOKEN RUN_ID_PATTERN or TOKEN RUN_ID_PATTERN MOST_RUNS")
