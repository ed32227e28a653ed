"""Credentials of an agent for its server: a token, and TLS files. Workers never get them."""

from typing import TYPE_CHECKING

from rdzv_protocol import words

if TYPE_CHECKING:
    import ssl

    from rdzv_protocol.tls_files import TlsFiles


class Credentials:
    """Credentials of one agent, for all its connections. Files are read again when that may help."""

    def __init__(
        self, token_file: str | None = None, tls: "TlsFiles | None" = None, token_flag: str = "--token-file"
    ) -> None:
        """Read the token. Raises `ValueError`, with one line that names the file, if the file cannot be used.

        `token_flag`: name by which a user sets the token's file, for messages.
        """
        self.tls = tls
        self.token_file = token_file
        self.token_flag = token_flag
        self.token = read_token(token_file) if token_file is not None else None
        self.latest_context: ssl.SSLContext | None = None
        """What `context` has returned last."""

    def __repr__(self) -> str:
        return f"Credentials(token_file={self.token_file!r}, tls={self.tls!r})"

    def renew(self, refused: str | None) -> bool:
        """Read the token file again. Return whether it now contains another token than the `refused` one."""
        if self.token_file is not None:
            try:
                self.token = read_token(self.token_file)
            except ValueError:
                return False
        return self.token != refused

    def context(self) -> "ssl.SSLContext | None":
        """Return the TLS context of a new connection, from the current files; None without TLS. Raises `ValueError`."""
        self.latest_context = self.tls.context() if self.tls else None
        return self.latest_context


def read_token(path: str) -> str:
    """Return the token in this file, the only line that is no comment.

    Raises `ValueError`, which never quotes the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip() and not line.lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(words.flags.unreadable_token(path, getattr(error, "strerror", None) or str(error))) from None
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable() or " " in lines[0]:
        raise ValueError(words.flags.no_token(path))
    return lines[0]
