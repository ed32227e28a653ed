"""Client of one or several servers: finds the leader, follows leaders through a failover, and explains failures.

`http.client` takes as long to import as h11, and also does sockets, TLS and streams (ADR 36).
"""

import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from rdzv_protocol import errors, paths
from rdzv_protocol import words as protocol_words
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.flag_values import Endpoint, address, endpoint
from rdzv_protocol.text import clip, printable

from rdzvctl import words
from rdzvctl.answers import Fields, decoded
from rdzvctl.connecting import HttpConnection, HttpsConnection
from rdzvctl.contexts import Target
from rdzvctl.errors import BadInput, CtlError, KeptOut, Refused, Unreachable

CONNECT_S = 5.0
"""Seconds within which a server must accept a connection; one second if there are other servers to ask."""
ANSWER_S = 30.0
OTHERS_S = 3.0
"""Seconds within which a server must answer that is asked only to show whether it answers."""
PAUSE_S = 0.2
"""Seconds between two rounds of asking servers when none of them leads."""
DEFAULT_TIMEOUT_S = 15.0
"""Seconds to wait for a leader: a takeover takes the leader's lease, 5 s by default, and a second."""
TOLD_AFTER_S = 1.0
"""Seconds after which the command tells its user that it waits for a leader."""
LAST_BYTE_S = 300.0
"""Seconds within which an answer must end, unless it is a stream."""
LARGEST_ANSWER, LARGEST_REFUSAL, LONGEST_LINE = 1 << 30, 1 << 20, 1 << 24
"""Most bytes of an answer, of an answer that reports an error, and of a line of a stream. The status of 10,000 nodes
takes 40 MB."""
READ_BYTES = 1 << 16

REFRESH_S = 5.0
"""Most seconds between two overviews while watching: ages grow, and servers that do not lead do not report changes."""
SETTLE_S = 0.3
"""Seconds in which changes are gathered, to be shown together."""
PAGE = 1_000
"""Number of events to ask for at a time."""
RETRY_S = 0.5
"""Seconds until a stream that has ended is opened again."""

T = TypeVar("T")
Request = dict[str, Any]
"""Body of a request, as a JSON map."""
Answer = http.client.HTTPResponse
"""Answer 200, whose body has not been read."""


class Failed(Exception):
    """Error of one server, which did not answer like a leader. `may_pass`: whether another server may lead soon."""

    is_sent = False
    """Whether the server may have received the request: it has not refused it."""

    def __init__(self, why: str, *, may_pass: bool, leader: str | None = None) -> None:
        super().__init__(why)
        self.may_pass = may_pass
        self.leader = leader


class NoServer(Failed):
    """Error of an address at which something other than a server listens: `what`."""

    def __init__(self, what: str = "") -> None:
        super().__init__(words.connection.no_server(what or words.connection.NO_ANSWER_OF_A_SERVER), may_pass=False)


class CannotNow(Failed):
    """Error of a server that cannot do now what it is asked: `why`. `may_last`: whether that may be a refusal."""

    def __init__(self, why: str, *, may_last: bool) -> None:
        super().__init__(why, may_pass=True)
        self.may_last = may_last


class NoHost(Failed):
    """Error of a name that has no address: `why`."""

    def __init__(self, why: str | None) -> None:
        super().__init__(words.connection.no_host(why), may_pass=False)


class Endless(http.client.HTTPException):
    """Error of an answer that is longer than any, or takes longer."""


class Status(NamedTuple):
    """Status of one server, with the address at which it was asked, and of the runs that it leads."""

    server: Fields
    runs: list[Fields]


class EventPage(NamedTuple):
    """Events of a run, the oldest first, and the number of the latest event."""

    events: list[Fields]
    last: int


class Overview(NamedTuple):
    """Status of every server that was asked, and of the runs that they lead."""

    servers: list[Fields]
    runs: list[Fields]
    unknown: list[str]
    """Sentences about what could not be learned: shards without a leader that answers."""
    silent: Sequence[str] = ()
    """Sentences about servers of the endpoint that do not answer, if each of them was asked."""


class Client:
    """Client that sends questions and actions to the leader, whichever server that is."""

    def __init__(
        self, target: Target, timeout_s: float = DEFAULT_TIMEOUT_S, tell: Callable[[str], None] | None = None
    ) -> None:
        """`timeout_s`: seconds to keep asking while no server leads. `tell`: called with a sentence about a long wait.

        Raises `BadInput` for a bad token file.
        """
        self.target = target
        self._timeout_s, self._tell = timeout_s, tell
        self._is_told = False
        """Whether the command has told its user that no server leads."""
        self._order = list(target.endpoints)
        self.versions: dict[str, str] = {}
        """Versions of the servers that have reported their status, by address."""
        tls = None
        if target.tls_ca:
            from rdzv_protocol.tls_files import TlsFiles

            tls = TlsFiles(target.tls_ca, target.tls_cert, target.tls_key)
        try:
            self._credentials = Credentials(target.token_file, tls)
        except ValueError as error:  # it names the file
            raise BadInput(
                words.connection.unreadable_token(str(error), target.token_source), words.connection.PUT_TOKEN_THERE
            ) from None
        try:
            self._context: ssl.SSLContext | None = self._credentials.context()
        except ValueError as error:  # it names the file
            raise BadInput(words.connection.bad_tls(str(error), target.source)) from None

    @property
    def token(self) -> str:
        """Token that is sent with each request; empty if there is none."""
        return self._credentials.token or ""

    # Questions.

    def overview(self, run_id: str | None = None, *, asks_all: bool = False, tells: bool = True) -> Overview:
        """Return the servers and their runs, or only that run, from every server that leads a shard.

        `asks_all`: whether to ask the other servers of the endpoint, too, which lead no shard. `tells`: whether to tell
        the user about a long wait.
        """
        path = paths.STATUS + (f"?run_id={quote(run_id, safe='')}" if run_id is not None else "")
        began_at = time.monotonic()
        while True:
            found = self._overview(path)
            if not found.unknown or not self._waits("; ".join(found.unknown), began_at, tells=tells):
                return self._with_others(found) if asks_all else found

    def _with_others(self, found: Overview) -> Overview:
        """Add the other servers of the endpoint. Each that leads is known already, maybe by another address."""
        others, silent = self._each_server({server["address"] for server in found.servers})
        return found._replace(
            servers=[*found.servers, *(server for server in others if not server["leads"])], silent=silent
        )

    def outages(self) -> list[Fields]:
        """Return the servers of the endpoint that lead but can decide nothing now; empty if none answers."""
        return [server for server in self._each_server()[0] if server["leads"] and not server["ready"]]

    def _each_server(self, but: Container[str] = ()) -> tuple[list[Fields], list[str]]:
        """Return the servers of the endpoint that answer, and sentences about those that do not.

        `but`: addresses that are not asked.
        """
        servers, silent = list[Fields](), list[str]()
        for at in (address(*each) for each in self.target.endpoints):
            if at not in but:
                try:
                    servers.append(self._status(at, paths.STATUS, OTHERS_S).server)
                except (Failed, CtlError) as error:
                    silent.append(words.connection.does_not_answer(at, str(error)))
        return servers, silent

    def _overview(self, path: str) -> Overview:
        first = self._any_status(path)
        servers, runs = [first.server], {run["run_id"]: run for run in first.runs}
        unknown: list[str] = []
        for leader, shards in _other_leaders(first.server).items():
            try:
                if leader is None:
                    raise Failed(first.server["unhealthy_reason"] or words.servers.NONE_LEADS, may_pass=True)
                answered = self._status(leader, path)
                servers.append(answered.server)
                runs |= {run["run_id"]: run for run in answered.runs}
                if shards := _not_led(answered.server, leader, shards):
                    raise Failed(words.connection.DOES_NOT_LEAD, may_pass=True)
            except Failed as error:
                has_several = len(first.server["shards"]) > 1
                which, are_shown = shards if has_several else (), bool(runs) and not has_several
                unknown.append(words.connection.unknown_runs(which, leader, str(error), are_shown=are_shown))
        return Overview(servers, [*runs.values()], unknown)

    def _any_status(self, path: str) -> Status:
        failures: dict[Endpoint, Failed] = {}
        for each in self._order:
            try:
                status = self._status(address(*each), path)
                self._order.sort(key=each.__ne__)  # ask this server first from now on
                return status
            except Failed as error:
                failures[each] = error
        raise self._unreachable(failures)

    def _status(self, at: str, path: str, answer_s: float = ANSWER_S) -> Status:
        """Return the status of the server at an address. Raises `Failed`."""
        found = self._read(self._open(endpoint(at), "GET", path, answer_s=answer_s))
        shown, runs = found.get("server"), found.get("runs")
        if not (isinstance(shown, Fields) and isinstance(runs, list) and all(isinstance(run, Fields) for run in runs)):
            raise NoServer()
        server = Fields({"address": at} | shown)
        self.versions[at] = server["version"]
        return Status(server, runs)

    def changes(self, run_id: str | None = None) -> Iterator[Overview]:
        """Yield the overview now, again soon after each change, and every `REFRESH_S` seconds, forever.

        It listens to every server that leads. Raises what `overview` raises, but only the first time: later, it waits
        for servers that do not answer.
        """
        changed, listeners = threading.Event(), dict[str, threading.Thread]()
        ask = partial(self.overview, run_id, asks_all=run_id is None)
        found = ask()
        while True:
            yield found
            for server in found.servers:
                at = server["address"]
                if server["leads"] and not (at in listeners and listeners[at].is_alive()):
                    listeners[at] = threading.Thread(target=self._listen, args=(at, run_id, changed), daemon=True)
                    listeners[at].start()
            changed.wait(REFRESH_S)
            time.sleep(SETTLE_S)
            changed.clear()
            try:
                found = ask(tells=False)
            except Unreachable as error:
                found = Overview([], [], [str(error)])

    def _listen(self, at: str, run_id: str | None, changed: threading.Event) -> None:
        """Set `changed` with each event of a server's stream, while the stream lasts."""
        path = paths.WATCH + (f"?run_id={quote(run_id, safe='')}" if run_id is not None else "")
        with suppress(Failed, CtlError, OSError, http.client.HTTPException):
            answer = self._open(endpoint(at), "GET", path, headers={"Accept": paths.STREAM_TYPE})
            for line in lines_of(answer):
                if line.startswith(b"data:"):
                    changed.set()
            changed.set()  # the current leader is listened to at once

    def latest_events(self, run_id: str, most: int) -> EventPage:
        """Return the latest events of a run, at most `most`; 0 for all that are kept."""
        ask = partial(self.ask_leader, self._read, "GET")
        last = ask(f"{paths.events_of(run_id)}?limit=1")["last"]
        after, found = max(0, last - most) if most else 0, list[Fields]()
        while after < last:
            page = ask(f"{paths.events_of(run_id)}?after={after}&limit={PAGE}")
            found += page["events"]
            after = page["after"] if page["events"] else last
        return EventPage(found, last)

    def timeline(self, run_id: str) -> Fields:
        """Return the last attempt of a run over time."""
        return self.ask_leader(self._read, "GET", paths.timeline_of(run_id))

    def metrics(self) -> str:
        """Return the metrics of the leader and its runs, in Prometheus' text format."""
        return self.ask_leader(self._text, "GET", paths.METRICS)

    def follow_events(self, run_id: str, after: int, waiting: Callable[[str], None]) -> Iterator[Fields]:
        """Yield events of a run after that number as they come, forever, from the leader, whichever server that is.

        `waiting` is called with a sentence, once each time that no server answers.
        """
        is_told = False
        while True:
            headers = {"Accept": paths.STREAM_TYPE, "Last-Event-ID": str(after)}
            try:
                stream = self.ask_leader(lambda answer: answer, "GET", paths.events_of(run_id), headers=headers)
                is_told = False
                for event in _events(stream):
                    after = event["number"]
                    yield event
            except Unreachable as error:
                if not is_told:
                    waiting(str(error))
                is_told = True
            time.sleep(RETRY_S)

    # Actions.

    def ask(self, path: str, body: Request) -> Fields:
        """Let the leader carry out an action, or answer a question, and return its answer.

        The request is repeated until a leader answers. An action's request id makes sure that it happens only once.
        """
        return self.ask_leader(self._read, "POST", path, body)

    def costs(self, action: str, of: Request) -> Fields:
        """Return what an action would cost."""
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in of.items())
        return self.ask_leader(self._read, "GET", f"{paths.COSTS}?action={action}&{query}")

    def ask_leader(
        self, read: Callable[[Answer], T], method: str, path: str, body: Request | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        """Return the leader's answer 200, read. Raises `Refused`, `KeptOut`, or `Unreachable` when the time is over."""
        began_at, is_sent, leading = time.monotonic(), False, set[Endpoint]()
        while True:
            failures: dict[Endpoint, Failed] = {}
            waiting = [*self._order]
            while waiting:
                each = waiting.pop(0)
                try:
                    answer, self._is_told = read(self._open(each, method, path, body, headers)), False
                    return answer
                except Failed as error:
                    failures[each], is_sent = error, is_sent or error.is_sent
                    if error.leader and (leader := endpoint(error.leader)) not in failures:
                        waiting.insert(0, leader)
            self._note_refusals(failures, leading)
            unreachable = self._unreachable(failures)
            if not any(error.may_pass for error in failures.values()) or not self._waits(str(unreachable), began_at):
                unreachable.is_sent = is_sent
                raise unreachable

    def _note_refusals(self, failures: Mapping[Endpoint, Failed], leading: set[Endpoint]) -> None:
        """Raise `Refused` if a server that led and was ready before and after its answer says that it cannot do this.

        `leading`: servers that lead and have given such an answer before; this method adds to them.
        """
        for each, error in failures.items():
            if isinstance(error, CannotNow) and error.may_last and self._leads(each):
                if each in leading:
                    raise Refused(str(error), code=errors.ServerUnavailable.code)
                leading.add(each)

    def _leads(self, to: Endpoint) -> bool:
        """Return whether a server leads and is ready."""
        try:
            with self._open(to, "GET", paths.LEADERZ, answer_s=OTHERS_S):
                return True
        except (Failed, CtlError):
            return False

    def _waits(self, why: str, began_at: float, *, tells: bool = True) -> bool:
        """Return False if the time to wait for a leader is over; else pause before the servers are asked again."""
        waited_s = time.monotonic() - began_at
        if waited_s > self._timeout_s:
            return False
        if self._tell and tells and not self._is_told and waited_s >= TOLD_AFTER_S:
            self._tell(words.connection.waits_for_leader(why, self._timeout_s))
            self._is_told = True
        time.sleep(PAUSE_S)
        return True

    # HTTP.

    def _open(
        self, to: Endpoint, method: str, path: str, body: Request | None = None,
        headers: Mapping[str, str] | None = None, answer_s: float = ANSWER_S,
    ) -> Answer:  # fmt: skip
        """Return one server's answer 200. Raises `Failed` if another server should be asked."""
        connection, token = self._connection(to), self._credentials.token
        raw = None if body is None else json.dumps(body).encode()
        sent = {"User-Agent": "rdzvctl", "Accept": "application/json", "Connection": "close", **(headers or {})}
        if raw is not None:
            sent["Content-Type"] = "application/json"
        if token:
            sent["Authorization"] = f"Bearer {token}"
        is_connected = False
        try:
            connection.connect()
            is_connected = True
            assert connection.sock
            connection.sock.settimeout(answer_s)
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: from a host's name
            connection.close()
            failed = self._failed(to, error)
            if isinstance(failed, Failed):
                failed.is_sent = is_connected
            raise failed from None
        if response.status == http.client.OK:
            return response
        if response.status == http.client.UNAUTHORIZED and self._credentials.renew(token):
            response.close()
            return self._open(to, method, path, body, headers, answer_s)
        with response:
            refusal = self._refusal(to, response)
        if isinstance(refusal, NoServer):  # such as a proxy, which may have passed the request on
            refusal.is_sent = True
        raise refusal

    def _connection(self, to: Endpoint) -> http.client.HTTPConnection:
        limit_s = CONNECT_S if len(self._order) == 1 else 1.0
        with suppress(ValueError):  # a file is being replaced: keep what was read before
            self._context = self._credentials.context()
        if self._context:
            return HttpsConnection(*to, timeout=limit_s, context=self._context)
        return HttpConnection(*to, timeout=limit_s)

    def _failed(self, to: Endpoint, error: Exception) -> Exception:
        """Return why a server did not answer; a lasting reason ends the command."""
        tls = self._credentials.tls
        if tls and (why := tls.explain(error, to[0])):
            return KeptOut(words.connection.kept_out(address(*to), why))
        if isinstance(error, TimeoutError):
            return Failed(words.connection.NO_ANSWER_IN_TIME, may_pass=False)
        if isinstance(error, socket.gaierror):
            return NoHost(error.strerror)
        if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
            return NoServer(words.connection.NO_HTTP)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return Failed(words.connection.BROKEN_OFF, may_pass=True)
        text = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else printable(str(error))
        return Failed(text, may_pass=False)

    def _text(self, answer: Answer) -> str:
        """Return the text of an answer. Raises `Failed`."""
        try:
            with answer:
                return _body(answer, LARGEST_ANSWER).decode(errors="replace")
        except Endless as error:
            raise Failed(str(error), may_pass=False) from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(words.connection.answer_broken_off(printable(str(error))), may_pass=True) from None

    def _read(self, answer: Answer) -> Fields:
        """Return the map in an answer. Raises `Failed`."""
        text = self._text(answer)
        try:
            found = decoded(text)
        except (ValueError, RecursionError):  # RecursionError: from a thousand brackets
            found = None
        if not isinstance(found, Fields):
            raise NoServer()
        return found

    def _refusal(self, to: Endpoint, response: http.client.HTTPResponse) -> Exception:
        """Return the error for an answer other than 200."""
        body = b""
        try:
            body = _body(response, LARGEST_REFUSAL)
            reply = json.loads(body)
            refusal = errors.from_code(
                str(reply["code"]), printable(str(reply["message"])), reply.get("leader"), reply.get("leadership", 0)
            )
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
            if body.decode(errors="replace").strip() == paths.AGENT_HAS_METRICS_ONLY:
                return NoServer(words.connection.AN_AGENTS_METRICS)
            if response.status == http.client.NOT_FOUND and _is_servers(response.headers, body):
                return Refused(words.connection.unknown_request(address(*to)))
            return NoServer(words.connection.other_status(response.status))
        match refusal:
            case errors.NotLeader():
                why = words.connection.DOES_NOT_LEAD if refusal.leader else str(refusal)  # why it knows no leader
                return Failed(why, may_pass=True, leader=refusal.leader)
            case errors.ServerUnavailable():  # a limit of requests passes by itself
                return CannotNow(str(refusal), may_last=not isinstance(refusal, errors.TooManyRequests))
            case errors.TlsRequired():
                return KeptOut(words.connection.speaks_tls(address(*to)))
            case errors.Unauthorized():
                return KeptOut(self._wrong_token(address(*to)))
            case errors.Forbidden():
                return KeptOut(words.connection.kept_out(address(*to), str(refusal)))
        return Refused(str(refusal), code=refusal.code)

    def _wrong_token(self, at: str) -> str:
        file = self.target.token_file
        return protocol_words.tls.wrong_token(at, file) if file else words.connection.asks_for_token(at)

    def _unreachable(self, failures: Mapping[Endpoint, Failed]) -> Unreachable:
        why, tried = words.connection, {address(*each): clip(str(error), 400) for each, error in failures.items()}
        if any(isinstance(error, CannotNow) for error in failures.values()):
            return Unreachable(why.cannot_now(tried), why.WORKERS_RUN)
        if any(error.may_pass for error in failures.values()):
            return Unreachable(why.no_server_leads(tried), why.WORKERS_RUN)
        what_to_do = why.IS_IT_RUNNING
        for kind, advice in ((NoServer, why.NAME_ITS_PORT), (NoHost, why.CHECK_NAME)):
            if all(isinstance(error, kind) for error in failures.values()):
                what_to_do = advice
        return Unreachable(why.no_server_answers(tried), why.asked_because(self.target.source), what_to_do)


def _is_servers(headers: http.client.HTTPMessage, body: bytes) -> bool:
    """Return whether this answer 404 comes from an rdzv-server. A proxy may put its own name in the server's place."""
    program = headers.get("Server", "")
    return program == "rdzv-server" or (bool(program) and body == b"404 Not Found\n")


def _other_leaders(server: Fields) -> dict[str | None, list[int]]:
    """Return the leaders to ask besides this server, with their shards; under None the shards without a leader."""
    leaders: dict[str | None, list[int]] = {}
    for shard in server["shards"]:
        leaders.setdefault(shard["leader"], []).append(shard["shard"])
    is_all = server["leads"] and len(leaders) == 1
    return {} if is_all else leaders


def _not_led(server: Fields, at: str, shards: list[int]) -> list[int]:
    """Return those of the shards that this server does not lead by its own account."""
    if not server["leads"]:
        return shards
    elsewhere = {shard["shard"] for shard in server["shards"] if shard["leader"] != at}
    return [shard for shard in shards if shard in elsewhere]


def _events(answer: Answer) -> Iterator[Fields]:
    """Yield the events of a stream until it ends or breaks off, or the server says that it is over."""
    with suppress(OSError, http.client.HTTPException):
        for line in lines_of(answer):
            if line.startswith(b"event: error"):
                return
            if line.startswith(b"data:"):
                yield decoded(line.removeprefix(b"data:"))


def lines_of(answer: Answer) -> Iterator[bytes]:
    """Yield the lines of a stream as they come, to its end. Raises `HTTPException` for a line without an end."""
    with answer:
        while line := answer.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise http.client.LineTooLong("stream")
            yield line


def _body(answer: Answer, most: int) -> bytes:
    """Return the body of an answer.

    Raises `Endless` if it has more than `most` bytes or takes too long, and `IncompleteRead` if it ends early.
    """
    body, until = bytearray(), time.monotonic() + LAST_BYTE_S
    while read := answer.read1(READ_BYTES):
        body += read
        if len(body) > most:
            raise Endless(words.connection.answer_too_large(most))
        if time.monotonic() > until:
            raise Endless(words.connection.answer_takes_too_long(LAST_BYTE_S))
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    return bytes(body)
