"""Names in commands that a person copies into a shell."""

from rdzv_protocol.text import printable


def quoted(text: str) -> str:
    """Return the text quoted for a shell; unprintable characters become spaces."""
    from shlex import quote  # not needed by a run without trouble

    return quote(printable(text))
