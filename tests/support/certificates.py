"""Certificates for tests, new for each test."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.tls_files import TlsFiles

SERVER_NAMES = ("localhost", "127.0.0.1", "::1")


class Pair(NamedTuple):
    """PEM files."""

    cert: str
    key: str


class Authority:
    """Certificate authority of servers and nodes. `ca`: the file with its certificate, for clients that trust it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.ca = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def trust_also(self, other: "Authority") -> None:
        """Add the other authority to the file with this one's certificate."""
        Path(self.ca).write_bytes(self._authority.cert_pem.bytes() + other._authority.cert_pem.bytes())

    def give_way(self, other: "Authority") -> None:
        """Replace this authority by the other one in the file with its certificate."""
        other._authority.cert_pem.write_to_path(self.ca)

    def issue(self, file_name: str, *names: str, days: float = 90, begins: float = -200) -> Pair:
        """Return a certificate for these names, valid for this number of days. If negative, it has expired.

        `begins`: days from now at which it becomes valid.
        """
        made = self._authority.issue_cert(
            *(names or SERVER_NAMES),
            not_before=datetime.now(UTC) + timedelta(days=begins),
            not_after=datetime.now(UTC) + timedelta(days=days),
        )
        pair = Pair(str(self._folder / f"{file_name}.pem"), str(self._folder / f"{file_name}.key"))
        made.private_key_pem.write_to_path(pair.key)
        Path(pair.key).chmod(0o600)
        Path(pair.cert).write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return pair

    def credentials(self, pair: Pair | None = None, token_file: str | None = None) -> Credentials:
        """Return the credentials of an agent that trusts this authority."""
        return Credentials(token_file, TlsFiles(self.ca, *(pair or (None, None))))
