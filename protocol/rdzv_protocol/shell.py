"""Names in commands that a person copies into a shell."""

from shlex import quote

from rdzv_protocol.text import printable


def quoted(text: str) -> str:
    """Return the text quoted for a shell; unprintable characters become spaces."""
    return quote(printable(text))
