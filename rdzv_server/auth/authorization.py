"""Authorization of agents, of people who watch, and of people who act, each with a token of their own.

    path                      agent   read    admin   without any token
    /v1/agent/...             yes     no      yes     yes
    GET /v1/..., /metrics     yes     yes     yes     yes
    other methods on /v1/...  no      no      yes     only from loopback
    everything else           yes     yes     yes     yes

An agents' token may be valid for some runs only, and for a limited number at a time. Then it shows its holder nothing
about other runs. Tokens are compared in constant time, and all of them each time, so the time of an answer reveals
nothing about any token. A browser has a session that is derived from a token. It may do what the token allows, except
taking part in runs, and may act only from the server's own page.
"""

import hmac
import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from ipaddress import ip_address

from msgspec import Struct
from rdzv_protocol import paths
from rdzv_protocol.errors import Forbidden, ServerUnavailable, Unauthorized

from rdzv_server.auth import session
from rdzv_server.words import auth as words

ANY_RUN = "*"
MOST_NAMES = 64
"""Number of agents' latest Host headers that are remembered."""
_UNREGISTRABLE = (".localhost", ".local", ".internal", ".svc")
"""Suffixes of names that cannot be registered: RFC 6761, RFC 6762, ICANN's private use, and Kubernetes' short one."""


class Role(Enum):
    AGENT = "agent"
    READ = "read"
    ADMIN = "admin"


class Action(Enum):
    """Action that a request asks for, and that a credential may permit."""

    TAKE_PART = words.TAKE_PART
    LOOK = words.LOOK
    ACT = words.ACT
    PROBE = words.PROBE


_ALLOWED: dict[Action, frozenset[Role]] = {
    Action.TAKE_PART: frozenset({Role.AGENT, Role.ADMIN}),
    Action.LOOK: frozenset(Role),
    Action.ACT: frozenset({Role.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Token:
    """Secret, and what it lets its holder do. `str()` and `repr()` do not show the secret."""

    role: Role
    secret: bytes
    runs: str = ANY_RUN
    """Pattern of the run ids for which the token is valid, as for file names."""
    most_runs: int | None = None
    """Most active runs among these at a time; None for as many as the server has room for."""

    def covers(self, run_id: str) -> bool:
        return fnmatchcase(run_id, self.runs)

    def has_room(self, active_runs: Collection[str]) -> bool:
        """Return whether one more of the token's runs may begin beside the active runs `active_runs`."""
        return self.most_runs is None or sum(map(self.covers, active_runs)) < self.most_runs

    def __repr__(self) -> str:
        return f"Token({self.role.value})"


class Caller(Struct, frozen=True, kw_only=True):
    """Sender of a request: its address, and what the headers say."""

    peer: str
    authorization: str = ""
    session: str = ""
    """Session cookie of a user who has logged in; it counts only without `authorization`."""
    csrf: str = ""
    """CSRF token that the server's own page sends with an action, beside the cookie."""
    host: str = ""
    origin: str | None = None
    """Web page that sends the request: "null" if it hides its name, None if no page does."""
    is_browser: bool = False
    """Whether the request has headers that every browser sends and no page can remove: it may come from a page."""
    is_tls: bool = False

    @property
    def credential(self) -> str:
        """Token header or session cookie that the caller presents; empty if there is none."""
        return self.authorization or self.session

    @property
    def is_own_page(self) -> bool:
        """Whether the request comes from a page of this server, or from a program that is not a page."""
        return self.origin is None or self.origin.endswith(f"://{self.host}")


class ServerNames:
    """Host names under which browsers may send requests to this server.

    A web page may make its own name resolve to this server's address. Then its scripts could read the server's answers
    (DNS rebinding). It cannot do so with an address, with a name that cannot be registered, or with a name that is not
    its own. Such names are this machine's name, names that the operator allows, and names that agents use, since agents
    are not browsers.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = {name.lower() for name in (*allowed, socket.gethostname())}
        self._of_agents: dict[str, None] = {}

    def learn(self, host: str) -> None:
        """Remember a Host header that an agent has used."""
        if host not in self._of_agents:
            while len(self._of_agents) >= MOST_NAMES:
                del self._of_agents[next(iter(self._of_agents))]
            self._of_agents[host] = None

    def check(self, host: str) -> None:
        """Raise `Forbidden` if the owner of a web page may have made this name resolve to this server."""
        name = _name_of(host).lower()
        if "." not in name or _is_address(name) or name.endswith(_UNREGISTRABLE) or name in self._allowed:
            return
        if name not in map(_name_of, map(str.lower, self._of_agents)):
            raise Forbidden(words.unknown_name(name))


@dataclass(frozen=True, slots=True)
class Permit:
    """Permit for the runs that a request may be about. `tokens`: tokens that let it in; None if none was required."""

    tokens: tuple[Token, ...] | None = None

    @property
    def covers_all(self) -> bool:
        """Whether the request may be about every run."""
        return self.tokens is None or any(token.runs == ANY_RUN for token in self.tokens)

    @property
    def shows(self) -> Callable[[str], bool] | None:
        """Function that returns whether the request may be about the run with this id; None if it may be about all."""
        return None if self.covers_all else self.covers

    @property
    def role(self) -> str:
        """Role of the token that let the request in; empty if none was required."""
        return self.tokens[0].role.value if self.tokens else ""

    def covers(self, run_id: str) -> bool:
        """Return whether the request may be about this run."""
        return self.tokens is None or any(token.covers(run_id) for token in self.tokens)

    def check_run(self, run_id: str | None) -> None:
        """Raise `Forbidden` unless the request may be about this run. None stands for every run, as for a node."""
        if not self.covers(run_id or ""):  # only the pattern of all runs matches ""
            raise Forbidden(words.not_for_run(self._patterns, run_id))

    def check_every_run(self, why: str) -> None:
        """Raise `Forbidden` unless the request may be about every run. `why`: reason why this is required."""
        if not self.covers_all:
            raise Forbidden(words.not_for_all_runs(self._patterns, why))

    @property
    def _patterns(self) -> list[str]:
        return [token.runs for token in self.tokens or ()]

    @property
    def has_quota(self) -> bool:
        return self.tokens is not None and any(token.most_runs is not None for token in self.tokens)

    def check_quota(self, run_id: str, active_runs: Collection[str]) -> None:
        """Raise `ServerUnavailable` if this run is not in `active_runs` and the token does not allow further runs."""
        mine = [token for token in self.tokens or () if token.covers(run_id)]
        if run_id not in active_runs and not any(token.has_room(active_runs) for token in mine):
            most = max(token.most_runs or 0 for token in mine)
            raise ServerUnavailable(words.too_many_runs(most, run_id))


_EVERY_RUN = Permit()


class Access:
    """Tokens of one server. Without tokens, all callers are let in, and may act from loopback."""

    def __init__(self, tokens: Iterable[Token] = (), names: ServerNames | None = None) -> None:
        self.tokens = tuple(tokens)
        self.names = names or ServerNames()

    @property
    def is_open(self) -> bool:
        """Whether every caller that reaches the server may take part."""
        return not self.tokens

    def check(self, method: str, path: str, caller: Caller) -> Permit:
        """Return the permit for what the caller may do with this path. Raises `Unauthorized` or `Forbidden`."""
        action = action_of(method, path)
        if action is Action.PROBE:
            return _EVERY_RUN
        if action is Action.TAKE_PART and caller.origin is not None:
            raise Forbidden(words.foreign_page_takes_part(caller.origin))
        if self.tokens:
            return self._permit(action, self._known(action, caller))
        if caller.is_browser and not caller.is_tls:
            self.names.check(caller.host)
        elif action is Action.TAKE_PART:
            self.names.learn(caller.host)
        if action is Action.ACT:
            _check_is_this_machine(caller)
        return _EVERY_RUN

    def _permit(self, action: Action, tokens: list[Token]) -> Permit:
        allowed = [token for token in tokens if token.role in _ALLOWED[action]]
        if not allowed:
            needed = next(role for role in Role if role in _ALLOWED[action])
            raise Forbidden(words.role_lacks(tokens[0].role.value, action.value, needed.value))
        return Permit(tuple(allowed))

    def may_act(self, caller: Caller) -> bool:
        """Return whether the server's own page shows this caller buttons for actions."""
        if self.tokens:
            return any(token.role in _ALLOWED[Action.ACT] for token in self._matches(caller))
        return is_loopback(caller.peer) and names_loopback(caller.host)

    def csrf(self, caller: Caller) -> str:
        """Return the CSRF token that the server's own page must send with an action; empty if there is no session."""
        return next((session.csrf(token.secret, caller.session) for token in self._matches(caller)), "")

    def log_in(self, token: str, now: float) -> str:
        """Return a session for the holder of a token. `now`: seconds since 1970. Raises `Unauthorized`."""
        known = self._matches(Caller(peer="", authorization=f"Bearer {token}"))
        if not known:
            raise Unauthorized(words.UNKNOWN_SECRET)
        return session.issue(known[0].secret, now)

    def _known(self, action: Action, caller: Caller) -> list[Token]:
        known = self._matches(caller)
        if not known:
            raise Unauthorized(words.WRONG_TOKEN if caller.authorization else words.NO_TOKEN)
        if not caller.authorization:
            _check_is_own_page(action, caller, known)
        return known

    def _matches(self, caller: Caller) -> list[Token]:
        """Return the tokens that the caller presents, or has logged in with."""
        if caller.authorization or not caller.session:
            given = caller.authorization.encode(errors="replace")
            matches = [hmac.compare_digest(given, b"Bearer " + token.secret) for token in self.tokens]
        else:
            matches = [session.is_of(token.secret, caller.session, time.time()) for token in self.tokens]
        return [token for token, same in zip(self.tokens, matches, strict=True) if same]


def _check_is_own_page(action: Action, caller: Caller, tokens: list[Token]) -> None:
    """Raise `Forbidden` for anything that a browser may not do with its session."""
    if action is Action.TAKE_PART:
        raise Forbidden(words.SESSION_TAKES_PART)
    wanted = [session.csrf(token.secret, caller.session) for token in tokens]
    given = caller.csrf.encode(errors="replace")
    if action is Action.ACT and not any(hmac.compare_digest(given, each.encode()) for each in wanted):
        raise Forbidden(words.NO_CSRF)
    if not caller.is_own_page:
        raise Forbidden(words.foreign_session(caller.origin))


def action_of(method: str, path: str) -> Action:
    """Return the action that a request with this method and path asks for."""
    if path.startswith(paths.AGENT):
        return Action.TAKE_PART
    if not path.startswith((paths.API, paths.METRICS)):
        return Action.PROBE
    return Action.LOOK if method in ("GET", "HEAD", "OPTIONS") else Action.ACT


def roles_for(method: str, path: str) -> frozenset[Role]:
    """Return the roles that may make this request if tokens are required; empty if it needs no token."""
    return _ALLOWED.get(action_of(method, path), frozenset())


def _check_is_this_machine(caller: Caller) -> None:
    """Raise `Forbidden` for other machines, and for foreign pages in a browser on this machine."""
    if not is_loopback(caller.peer):
        raise Forbidden(words.not_this_machine(_port_of(caller.host) or paths.DEFAULT_PORT))
    if caller.origin is not None and not (caller.is_own_page and names_loopback(caller.host)):
        raise Forbidden(words.foreign_page_acts(caller.origin))


def _name_of(host: str) -> str:
    """Return the name or address in a Host header."""
    name = host.rpartition(":")[0] if _port_of(host) else host
    return name.strip("[]").removesuffix(".")


def _port_of(host: str) -> str:
    """Return the port in a Host header; empty if it has none."""
    port = host.rpartition(":")[2]
    return port if port.isdigit() else ""


def names_loopback(host: str) -> bool:
    """Return whether a Host header names the machine that it is used on."""
    return _name_of(host) == "localhost" or is_loopback(_name_of(host))


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Return whether it is an address of this machine that other machines cannot reach."""
    try:
        return ip_address(address.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False
