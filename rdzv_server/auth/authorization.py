"""Who may do what: agents, people who watch, and people who act, each with a token of their own.

    path                      agent   read    admin   without any token
    /v1/agent/...             yes     no      yes     yes
    GET /v1/...               yes     yes     yes     yes
    other methods on /v1/...  no      no      yes     from loopback alone
    everything else           yes     yes     yes     yes

An agents' token may be good for some runs alone; it then shows its bearer nothing of the others. Tokens are compared in
constant time, and all of them each time: how long an answer takes tells nothing about any.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from ipaddress import ip_address

from rdzv_protocol import paths
from rdzv_protocol.errors import Forbidden, Unauthorized

ANY_RUN = "*"


class Role(Enum):
    AGENT = "agent"
    READ = "read"
    ADMIN = "admin"


class Deed(Enum):
    """What a request is about."""

    JOIN = "take part in runs"
    LOOK = "look at runs"
    ACT = "act on runs"
    NOTHING = "ask whether the server is there"


_ALLOWED: dict[Deed, frozenset[Role]] = {
    Deed.JOIN: frozenset({Role.AGENT, Role.ADMIN}),
    Deed.LOOK: frozenset(Role),
    Deed.ACT: frozenset({Role.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, and what it lets its bearer do. `str()` and `repr()` do not tell it."""

    role: Role
    secret: bytes
    runs: str = ANY_RUN
    """A pattern of the run ids that it is good for, as of file names."""

    def __repr__(self) -> str:
        return f"Token({self.role.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request says of who sends it: the address, and three of its headers."""

    peer: str
    authorization: str = ""
    host: str = ""
    origin: str = ""
    """The page that sends it, if a browser does."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Which runs a request may be about."""

    runs: tuple[str, ...] = (ANY_RUN,)

    def check_run(self, run_id: str) -> None:
        """Raise `Forbidden` unless the request may be about this run."""
        if not any(fnmatchcase(run_id, pattern) for pattern in self.runs):
            raise Forbidden(f"this token is good for runs {' and '.join(self.runs)} alone, not for {run_id}")


class Access:
    """The tokens of one server; none at all lets everybody in, and act from loopback."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = tuple(tokens)

    @property
    def is_open(self) -> bool:
        """Whether anybody who reaches the server may take part."""
        return not self.tokens

    def check(self, method: str, path: str, caller: Caller) -> Permit:
        """What the caller may do with this path. Raises `Unauthorized` or `Forbidden`."""
        deed = deed_of(method, path)
        if deed is Deed.NOTHING:
            return Permit()
        if not self.tokens:
            if deed is Deed.ACT:
                _check_is_this_machine(caller)
            return Permit()
        return self._permit(deed, self._known(caller.authorization))

    def _permit(self, deed: Deed, tokens: list[Token]) -> Permit:
        allowed = [token for token in tokens if token.role in _ALLOWED[deed]]
        if not allowed:
            raise Forbidden(f"the {tokens[0].role.value} token does not let its bearer {deed.value}")
        permit = Permit(tuple(token.runs for token in allowed))
        if deed is not Deed.JOIN and ANY_RUN not in permit.runs:
            raise Forbidden(f"this token is good for runs {' and '.join(permit.runs)} alone, and this shows all runs")
        return permit

    def _known(self, authorization: str) -> list[Token]:
        given = authorization.encode(errors="replace")
        matches = [hmac.compare_digest(given, b"Bearer " + token.secret) for token in self.tokens]
        known = [token for token, same in zip(self.tokens, matches, strict=True) if same]
        if not known:
            raise Unauthorized(f"{_WRONG if authorization else _MISSING} (curl: -H 'Authorization: Bearer TOKEN')")
        return known


_MISSING = "this server asks for a token: start the agent with --token-file"
_WRONG = "this server does not know this token: start the agent with --token-file and the right one"


def deed_of(method: str, path: str) -> Deed:
    """What a request with this method and path is about."""
    if not path.startswith(paths.API):
        return Deed.NOTHING
    if path.startswith(paths.AGENT):
        return Deed.JOIN
    return Deed.LOOK if method in ("GET", "HEAD", "OPTIONS") else Deed.ACT


def roles_for(method: str, path: str) -> frozenset[Role]:
    """Who may do this, where tokens are asked for; nobody is asked for one if it is empty."""
    return _ALLOWED.get(deed_of(method, path), frozenset())


def _check_is_this_machine(caller: Caller) -> None:
    """Nor may a page that somebody on this machine has open in a browser act in their name."""
    if not _is_loopback(caller.peer):
        raise Forbidden("without tokens this server takes operators' actions from its own machine alone")
    if caller.origin and not (caller.origin.endswith(f"://{caller.host}") and _names_loopback(caller.host)):
        raise Forbidden(f"without tokens this server takes no actions from the web page {caller.origin}")


def _names_loopback(host: str) -> bool:
    """Whether a Host header does. Any other name may be one that somebody has made point here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name == "localhost" or _is_loopback(name.strip("[]"))


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False
