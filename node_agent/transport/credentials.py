"""How an agent shows a server who it is, and knows who the server is: a token, and TLS. None of it reaches a worker."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

SYSTEM = "system"
"""For `TlsFiles.ca`: the authorities that the operating system trusts."""


class TlsFiles(NamedTuple):
    """PEM files: who may vouch for the server, and this node's own certificate with its key, if it has one."""

    ca: str
    cert: str | None = None
    key: str | None = None


class Credentials:
    """Of one agent, for all its lines. Files are read again when that may help, so that an agent outlives them."""

    def __init__(self, token_file: str | None = None, tls: TlsFiles | None = None) -> None:
        """Raises `ValueError`, with one line that names the file, if the token's is no good."""
        self.tls = tls
        self.token_file = token_file
        self.token = read_token(token_file) if token_file is not None else None

    def __repr__(self) -> str:
        return f"Credentials(token_file={self.token_file!r}, tls={self.tls!r})"

    def renew(self, refused: str | None) -> bool:
        """Whether the file holds, by now, another token than the one that was refused."""
        if self.token_file is not None:
            try:
                self.token = read_token(self.token_file)
            except ValueError:
                return False
        return self.token != refused

    def context(self) -> "ssl.SSLContext | None":
        """What a new connection speaks, by the files as they are now; None: plain HTTP. Raises `ValueError`."""
        if self.tls is None:
            return None
        from node_agent.transport.tls import make_context

        return make_context(self.tls)


def read_token(path: str) -> str:
    """The token in this file, the only line that is no comment. Raises `ValueError`; no error tells what it holds."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip() and not line.lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable() or " " in lines[0]:
        raise ValueError(f"{path}: put one word of printable ASCII into it, the token")
    return lines[0]
