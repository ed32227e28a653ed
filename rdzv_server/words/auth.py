"""Messages about permissions, and about the server's tokens and certificates."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from rdzv_protocol.text import count

# Refused callers.


def unknown_name(name: str) -> str:
    return (
        f"without tokens a browser must use this server's address or a name that agents use, not {name}; "
        f"or start the server with --allow-host {name}"
    )


def not_for_run(patterns: Sequence[str], run_id: str | None) -> str:
    """`run_id`: None for every run."""
    return f"this token only allows runs {' and '.join(patterns)}, not {run_id or 'every run'}"


def not_for_all_runs(patterns: Sequence[str], why: str) -> str:
    return f"this token only allows runs {' and '.join(patterns)}, and {why}: use a token of --read-token-file"


def too_many_runs(most: int, run_id: str) -> str:
    return f"this token already has {most} active runs, its limit: run {run_id} waits until one of them ends"


def foreign_page_takes_part(origin: str) -> str:
    return f"agents' paths do not accept requests from a web page ({origin})"


TAKE_PART = "take part in runs"
LOOK = "look at runs"
ACT = "act on runs"
PROBE = "ask whether the server is there"


def role_lacks(role: str, action: str, needed: str) -> str:
    """`needed`: the least role that allows the action."""
    flag = "--token-file" if needed == "agent" else f"--{needed}-token-file"
    return f"the {role} token does not allow its holder to {action}: use a token of rdzv-server's {flag}"


UNKNOWN_SECRET = "this server does not know this token"


_CURL = "(curl: -H 'Authorization: Bearer TOKEN')"
NO_TOKEN = f"this server asks for a token: start the agent with --token-file {_CURL}"
WRONG_TOKEN = f"{UNKNOWN_SECRET}: start the agent with --token-file and the right token {_CURL}"
SESSION_TAKES_PART = "agents cannot use a browser's session"
NO_CSRF = "a browser's session may act only from this server's own page: load the page again"


def foreign_session(origin: str | None) -> str:
    return f"the web page {origin} cannot use a browser's session"


def not_this_machine(port: str | int) -> str:
    return (
        "without tokens this server accepts operators' actions only from its own machine, under the name localhost. "
        f"Use --endpoint localhost:{port} there, or start the server with --token-file and --admin-token-file"
    )


def foreign_page_acts(origin: str) -> str:
    return f"without tokens this server does not accept actions from the web page {origin}"


# Files.


def bad_token_file(flag: str, path: str, why: str) -> str:
    return f"{flag} {path}: {why}"


NOT_PRINTABLE = "tokens must be printable ASCII"
NO_TOKEN_IN_FILE = "the file contains no token; write one of printable ASCII on a line of its own"
NOT_FOR_SOME_RUNS = "only agents' tokens can be limited to some runs"
BAD_LINE = "each line must be TOKEN, TOKEN RUN_ID_PATTERN or TOKEN RUN_ID_PATTERN MOST_RUNS"


def exposed(flag: str, path: str) -> str:
    return f"{flag} {path}: other users can read it: chmod 600 {path}"


OPEN = (
    "no --token-file: anyone who can reach this port can join, watch and disrupt runs; the server accepts operators' "
    "actions only from this machine"
)


def not_renewed(why: str) -> str:
    """After SIGHUP."""
    return f"SIGHUP: {why}; keeping the current tokens and certificates"


RENEWAL_FAILED = "SIGHUP: the server could not read its files again, because of an error in the server; runs continue"
RENEWED = "SIGHUP: the server has read the tokens and certificates again, for new connections"


def etcd_not_renewed(why: str) -> str:
    """After SIGHUP."""
    return f"SIGHUP: {why}; keeping the current certificates for etcd"


def etcd_not_renewed_yet(why: str) -> str:
    """After SIGHUP."""
    return f"SIGHUP: {why}; keeping the current certificates for etcd until etcd answers; then the server tries again"


ETCD_RENEWED = "SIGHUP: the server has read the certificates for etcd again, and connects to etcd with them"


def tls(certificate: str, expires_at: datetime) -> str:
    return f"TLS: certificate {certificate} expires on {expires_at:%Y-%m-%d %H:%M} UTC"


CertificateFlag = Literal["--tls-cert", "--tls-client-ca", "--etcd-cert", "--etcd-ca"]


def _without(flag: CertificateFlag) -> str:
    return "this server cannot use etcd" if flag.startswith("--etcd") else "agents cannot connect"


def certificate_expired(flag: CertificateFlag, path: str) -> str:
    return f"{flag} {path} has expired: {_without(flag)} until you replace it and send SIGHUP to this server"


def certificate_not_valid_yet(flag: CertificateFlag, path: str, begins_at: datetime) -> str:
    return (
        f"{flag} {path} is not valid before {begins_at:%Y-%m-%d %H:%M} UTC: until then, {_without(flag)}. Compare this "
        "machine's clock"
    )


def certificate_expires(flag: CertificateFlag, path: str, days: int) -> str:
    """`days`: whole days that are left."""
    left = count(days, "day") if days else "less than a day"
    return f"{flag} {path} expires in {left}: replace it, and send SIGHUP to this server"
