"""Commands with a server that answers as a test says: like one of an earlier version, or one in trouble.

A missing field of an earlier version never ends a command in a traceback. The fields are those of the server's own
types. Each is removed from real answers, everywhere, and each command that looks at it is tried.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import rdzv_protocol
from msgspec import inspect, structs
from rdzv_protocol import paths
from rdzv_protocol.actions import AgentDescription, Done, WorkerLog, WorkerStacks
from rdzv_protocol.events import EventPage
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words.run import read_output

from rdzv_server.core.events import NodeCordoned
from rdzv_server.core.nodes.cordons import CordonStatus
from rdzv_server.core.views import status_view, timeline_view
from rdzv_server.core.views.status_view import RunStatus
from rdzv_server.core.views.timeline_view import TimelineView
from rdzv_server.http.status_endpoint import ServerStatus, Status
from rdzv_server.service.interface import ShardView
from rdzv_server.words import cluster as cluster_words
from rdzvctl import answers, cli, client, completion, words
from rdzvctl.answers import DEFAULTS, DERIVED, Fields
from rdzvctl.client import Client
from rdzvctl.contexts import Target
from rdzvctl.errors import TooOld
from rdzvctl.session import Session
from tests.releases import FOLDER, VERSIONS
from tests.support.cases import case
from tests.support.message_search import has_message
from tests.support.rdzvctl import NOWHERE
from tests.support.scenario import Scenario, running

pytestmark = pytest.mark.xdist_group("commands")
"""One process has the server, and asks each command once which fields it reads."""

RUNS = ("restarting", "running", "failed")
FOLLOWED_BY = {
    "status": ("", "--json", "--phase running", "--health trouble --node a", "'r*'", *RUNS),
    "runs": ("", "--json", "'r*' --health ok"),
    "nodes": ("restarting", "running", "running --json"),
    "events": ("running", "running --json"),
    "timeline": ("running", "running --json"),
    "logs": ("running 0", "running 0 --lines 2", "running 0 --json", "failed 0"),
    "stacks": ("running",),
    "why": ("restarting", "running --json"),
    "bundle": ("running", "running --anonymize --json -o b", "failed"),
    "stop": ("running",),
    "restart": ("running",),
    "resize": ("running 1:2",),
    "admit": ("running",),
    "forget": ("failed",),
    "drain": ("a", "nobody"),
    "cordon": ("a",),
    "uncordon": ("d",),
    "config": ("get-contexts",),
}
"""Arguments of each command. Those of `status RUN` are about runs in which all shown events have happened."""
LINES = [f"{name} {words}".strip() for name, each in FOLLOWED_BY.items() for words in each]
READ_BY = {
    "Status": ("status", *(f"status {run}" for run in RUNS), "logs running 0", "stop running", "drain a"),
    "EventPage": ("events running", "status restarting"),
    "TimelineView": ("timeline running",),
    "WorkerLog": ("logs running 0",),
    "WorkerStacks": ("stacks running",),
    "AgentDescription": ("bundle running",),
    "Done": ("stop running",),
}
"""Lines that together read every field of each answer that is read anywhere."""
WHOLE = ("EventPage", "AgentDescription")
"""Answers that are read as a whole: an event becomes a message, and a description goes into the bundle as it is."""

Field = tuple[str, ...]
"""Names of the maps around a field of an answer, and its own."""


def fields_of(kind: inspect.Type, around: Field = ()) -> Iterator[tuple[Field, str]]:
    """Yield every field of an answer of this type, and of its parts, each with the name of the type that has it."""
    match kind:
        case inspect.Metadata(type=inner) | inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            yield from fields_of(inner, around)
        case inspect.UnionType(types=types):
            for each in types:
                yield from fields_of(each, around)
        case inspect.StructType(cls=owner, fields=fields):
            for field in fields:
                yield (*around, field.encode_name), owner.__name__
                yield from fields_of(field.type, (*around, field.encode_name))


def without(value: Any, field: Field) -> Any:
    """Return the answer without this field, everywhere."""
    if isinstance(value, list):
        return [without(each, field) for each in value]
    if not isinstance(value, dict) or field[0] not in value:
        return value
    name, *inner = field
    rest = {key: each for key, each in value.items() if key != name}
    return rest | {name: without(value[name], tuple(inner))} if inner else rest


ANSWERS: tuple[type, ...] = (Status, EventPage, TimelineView, WorkerLog, WorkerStacks, AgentDescription, Done)
FIELDS = dict(sorted(found for kind in ANSWERS for found in fields_of(inspect.type_info(kind), (kind.__name__,))))
"""Fields of all answers, each after the name of its answer, with the name of the type that has it."""
RELEASED = [json.loads((FOLDER / version / "promises.json").read_text())["HTTP API"]["fields"] for version in VERSIONS]
"""Fields of the answers of each released version, by type."""
NO_SERVER = (("Status", "server"), ("Status", "runs"))
"""Fields without which an answer does not count as an rdzv-server's."""
NEWER = [field for field, owner in FIELDS.items() if not all(field[-1] in known.get(owner, ()) for known in RELEASED)]
"""Fields that the servers of some released version do not send."""
PARSER = cli.make_parser()
"""Parser of every command line. Making it takes longer than most commands."""


# Answers made by a real server.


def _runs() -> Iterator[Scenario]:
    restarting = running("3", *"abc", max_restarts=2)
    restarting.fails("b", error="ValueError: boom", traceback=("Traceback:", "line 3"), hint="mend the data")
    restarting.join(*"abc")
    restarting.is_lost("c")
    restarting.join("a")
    restarting.disconnects("a")
    restarting.handle(NodeCordoned(node_id="d", by="admin", reason="its fan", for_s=60, wall_until=1_750_000_000.0))
    restarting.join("d")
    yield restarting
    goes_on = running("1:8", *"ab", scale_up="manual", legal_sizes=(1, 2, 4, 8))
    goes_on.join("c")
    goes_on.disconnects("b")
    for node_id in "ad":
        goes_on.handle(NodeCordoned(node_id=node_id, by="admin", reason="its fan"))
    goes_on.join("d")
    yield goes_on
    failed = running("1", "a")
    failed.passes(60)
    failed.fails("a", stderr_tail=("boom",))
    yield failed


def _timeline() -> TimelineView:
    run = running("2", *"ab", max_restarts=2)
    for step in (20, 40):
        run.passes(20)
        run.tells("a", lowest_step=step, highest_step=step, step_s=1)
    run.fails("a")
    run.join(*"ab")
    return timeline_view.view(run.run, run.now)


def _status(runs: list[Scenario], at: str) -> Status:
    cordon = CordonStatus(node_id="d", by="admin", reason="its fan", until=None, drained=False, excluded=True)
    server = ServerStatus(
        version="0.0.7", ready=True, epoch="1", unhealthy_reason=None, uptime_s=7.0, cordons=[cordon],
        agents_endpoint=at, shards=[ShardView(0, at, 1), ShardView(1, at, 1)],
    )  # fmt: skip
    shown = [status_view.view(run.run, run.now) for run in runs]
    named = zip(shown, RUNS, strict=True)
    return Status(server=server, runs=[_full(structs.replace(run, run_id=run_id)) for run, run_id in named])


def _full(run: RunStatus) -> RunStatus:
    nodes = [structs.replace(node, log_dir="/logs", slow=f"node {node.node_id} is slow") for node in run.nodes]
    return structs.replace(run, nodes=[*nodes[:-1], structs.replace(nodes[-1], drain_left_s=9.0)])


class OtherServer(ThreadingHTTPServer):
    """Answers as this version does, without some fields."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.at = f"127.0.0.1:{self.server_port}"
        runs = list(_runs())
        events = tuple(runs[1].events)
        self.answers: tuple[msgspec.Struct, ...] = (
            _status(runs, self.at),
            EventPage(events=events, after=events[-1].number, last=events[-1].number),
            _timeline(),
            WorkerLog(
                node_id="a", rank=0, round=1, stream="stderr", path="/logs/0", text="boom\n", offset=5, is_cut=True
            ),
            WorkerStacks(
                round=1, sentence="rank 0 in f", stack=("f",), node_id="a", folder="/logs", problems=("no py-spy",)
            ),
            AgentDescription(node_id="a", versions=(), system="Linux", cpus=2, gpu_driver="", variables=()),
            Done(epoch="1", message="run running is stopped"),
        )
        self._whole = {type(each).__name__: msgspec.json.decode(msgspec.json.encode(each)) for each in self.answers}
        self._told: dict[str, Any] = {}
        self.other_body = b""
        """Body of every answer, if it is not empty."""
        self.leads = True

    def lacks(self, *fields: Field, unhealthy_reason: str | None = None) -> None:
        """Omit these fields from now on. The server can make decisions, or cannot for this reason."""
        status = self._whole["Status"]
        health = {"ready": not unhealthy_reason, "unhealthy_reason": unhealthy_reason}
        self._told = self._whole | {"Status": status | {"server": status["server"] | health}}
        for kind, *field in fields:
            self._told[kind] = without(self._told[kind], tuple(field))

    def answer(self, path: str) -> Any:
        url = urlsplit(path)
        kinds = {paths.LOGS: "WorkerLog", paths.STACKS: "WorkerStacks", paths.DESCRIBE: "AgentDescription"}
        kind = ({paths.STATUS: "Status"} | kinds).get(url.path, "Done")
        kind = (
            "EventPage" if url.path.endswith("/events") else "TimelineView" if url.path.endswith("/timeline") else kind
        )
        found = self._told[kind]
        only = parse_qs(url.query).get("run_id")
        if only and "runs" in found:
            return found | {"runs": [run for run in found["runs"] if run.get("run_id", only[0]) == only[0]]}
        return found


class _Handler(BaseHTTPRequestHandler):
    server: OtherServer
    wbufsize = -1  # a reply is sent in one piece

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = self.server.other_body or msgspec.json.encode(self.server.answer(self.path))
        self.send_response(503 if self.path == paths.LEADERZ and not self.server.leads else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[OtherServer]:
    with serving() as server:
        yield server


@contextmanager
def serving() -> Iterator[OtherServer]:
    with OtherServer() as server:
        serving = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


class Watched(Fields):
    """Map of an answer that records the names of the fields at which a command looks."""

    seen: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)


def _watch_whole(method: str) -> None:
    def whole(self: Watched, *args: Any) -> Any:
        self.seen.update(dict.keys(self))
        return getattr(dict, method)(self, *args)

    setattr(Watched, method, whole)


for _method in ("__iter__", "__len__", "__eq__", "__or__", "__ror__", "__repr__", "copy", "items", "keys", "values"):
    _watch_whole(_method)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Commands:
    """Runs commands in this process, as people type them."""

    def __init__(self, server: OtherServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._server, self._capsys = server, capsys

    def run(self, line: str) -> Ended:
        flags = [] if line.startswith("config") or "--endpoint" in line else ["--endpoint", self._server.at]
        code = cli.main([*shlex.split(line), *flags])
        return Ended(code, *self._capsys.readouterr())

    def names(self) -> dict[str, list[str]]:
        """Return the names that a shell completes, by kind."""
        return {kind: completion.names(kind, "", {"endpoint": self._server.at}, {}) for kind in completion.FROM_SERVERS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current folder of all commands: making one for each test takes as long as a command."""
    return tmp_path_factory.mktemp("commands")


@pytest.fixture
def commands(
    server: OtherServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[Commands]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setattr(cli, "make_parser", lambda line: PARSER)
    monkeypatch.chdir(folder)
    server.lacks()
    yield Commands(server, capsys)
    remove_bundles(folder)


def remove_bundles(folder: Path) -> None:
    """Make room for another bundle of the same second."""
    for bundle in folder.iterdir():
        bundle.unlink()


@pytest.fixture(scope="module")
def read_by(server: OtherServer, folder: Path) -> dict[str, set[str]]:
    """The names of the fields at which each line of `READ_BY` looks, with a server that lacks none."""
    found = {}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        patch.setenv("XDG_CONFIG_HOME", NOWHERE)
        patch.chdir(folder)
        patch.setattr(answers, "Fields", Watched)
        for line in {line for lines in READ_BY.values() for line in lines}:
            patch.setattr(Watched, "seen", set())
            for reason in (None, "disk full") if line in READ_BY["Status"] else (None,):
                server.lacks(unhealthy_reason=reason)
                assert cli.main([*shlex.split(line), "--endpoint", server.at]) == ExitCode.SUCCEEDED
            found[line] = Watched.seen
    remove_bundles(folder)
    return found


def test_every_command_is_tried() -> None:
    assert FOLLOWED_BY.keys() == {command.name for command in cli.all_commands()}


def test_only_fields_that_a_released_server_does_not_send_have_a_value_of_rdzvctls() -> None:
    of_any_server, left_out = {"version"}, {"at", "by"}
    assert (DEFAULTS.keys() | DERIVED.keys()) - of_any_server - left_out <= {field[-1] for field in NEWER}


@pytest.mark.parametrize("line", LINES)
def test_a_command_works_if_no_field_is_missing(commands: Commands, line: str) -> None:
    done = commands.run(line)
    assert done.code == ExitCode.SUCCEEDED and done.out, done.err


@pytest.mark.parametrize(
    "line", sorted({line for kind, lines in READ_BY.items() if kind not in WHOLE for line in lines})
)
def test_a_command_prints_the_same_without_all_the_fields_that_it_does_not_read(
    server: OtherServer, commands: Commands, read_by: dict[str, set[str]], line: str
) -> None:
    whole = commands.run(line)
    server.lacks(*[field for field in FIELDS if field[0] not in WHOLE and field[-1] not in read_by[line]])
    assert commands.run(line) == whole


@pytest.mark.parametrize("answer", sorted({field[0] for field in FIELDS}))
def test_a_command_works_without_a_field_or_names_the_server_that_lacks_it(
    server: OtherServer, commands: Commands, read_by: dict[str, set[str]], folder: Path, answer: str
) -> None:
    for field in FIELDS:
        if field[0] == answer:
            with case(field):
                check_without(field, server, commands, read_by)
            remove_bundles(folder)


def check_without(field: Field, server: OtherServer, commands: Commands, read_by: dict[str, set[str]]) -> None:
    version = "of an unknown version" if field[-1] == "version" else "0.0.7"
    says = f"rdzvctl: error: {words.connection.lacks_field({server.at: version}, field[-1])}"
    for reason in (None, "disk full") if field[1] == "server" else (None,):
        server.lacks(field, unhealthy_reason=reason)
        for line in READ_BY[field[0]]:
            if field[0] not in WHOLE and field[-1] not in read_by[line]:
                continue
            done = commands.run(line)
            errors = [text for text in done.err.splitlines() if text.startswith("rdzvctl: error")]
            if done.code == ExitCode.SUCCEEDED:
                assert not errors
            elif field in NO_SERVER:
                assert words.connection.no_server(words.connection.NO_ANSWER_OF_A_SERVER) in done.err
            else:
                assert field not in NEWER, (line, done.err)
                assert (done.code, errors) == (ExitCode.FAILED, [says]), (line, done.err)


@pytest.mark.parametrize(
    ("version", "help_line"),
    [
        ("0.0.7", words.connection.OTHER_VERSION),
        (rdzv_protocol.VERSION, words.connection.OTHER_BUILD),
    ],
)
def test_a_server_of_the_same_version_is_not_called_older(version: str, help_line: str) -> None:
    assert TooOld("phase", {"gpu1:29400": version}).help_lines == (help_line,)


def test_rdzvctl_shows_everything_of_a_server_without_later_fields(server: OtherServer, commands: Commands) -> None:
    server.lacks(*NEWER)
    for line in LINES:
        assert commands.run(line).code == ExitCode.SUCCEEDED, line
    assert commands.names()["nodes"] == ["a", "b", "c", "d"]


def test_without_names_from_the_server_nothing_is_completed(server: OtherServer, commands: Commands) -> None:
    assert commands.names()["live-runs"] == ["restarting", "running"]
    server.lacks(("Status", "runs", "run_id"), ("Status", "server", "cordons", "node_id"))
    assert not any(commands.names().values())


def test_an_answer_that_is_not_a_servers_is_reported_as_such(server: OtherServer, commands: Commands) -> None:
    server.lacks(*NO_SERVER)
    done = commands.run("status")
    assert done.code == ExitCode.START_AGAIN
    says = words.connection.no_server_answers(
        {server.at: words.connection.no_server(words.connection.NO_ANSWER_OF_A_SERVER)}
    )
    assert done.err.splitlines()[0] == f"rdzvctl: error: {says}"


@pytest.mark.parametrize("body", ['{"server": [], "runs": []}', '{"server": {}, "runs": {"a": 1}}', "[" * 100_000])
def test_json_of_another_program_is_reported_as_such(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(server, "other_body", body.encode())
    done = commands.run("status")
    assert done.code == ExitCode.START_AGAIN
    assert words.connection.no_server(words.connection.NO_ANSWER_OF_A_SERVER) in done.err


def test_an_action_whose_answer_is_lost_in_an_outage_names_the_outage(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "do_POST", lambda handler: handler.connection.close())
    server.lacks(unhealthy_reason="disk full")
    done = commands.run("cordon a --timeout 0.1 --request-id id")
    outage = words.servers.cannot_decide(server.at, "disk full")
    assert (done.code, done.err.splitlines()) == (
        ExitCode.START_AGAIN,
        [
            f"rdzvctl: {outage}",
            f"rdzvctl: error: {words.actions.outcome_unknown(outage)}",
            f"  {words.actions.MAY_BE_DONE_LATER}",
            f"  {words.actions.ask_again('id')}",
        ],
    )
    server.lacks()
    (first, *_) = commands.run("cordon a --timeout 0.1").err.splitlines()
    assert words.connection.BROKEN_OFF in first, "no server has an outage"


def refuse(handler: _Handler, status: int, reply: dict[str, str]) -> None:
    body = json.dumps(reply).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.parametrize(
    ("status", "reply", "is_unknown"),
    [
        (421, {"code": "not_leader", "message": "no"}, False),
        (503, {"code": "unavailable", "message": "no"}, False),
        (504, {"from": "a proxy, which may have passed the request on"}, True),
    ],
    ids=["no leader", "unavailable", "proxy"],
)
def test_an_action_that_every_server_refused_is_not_done(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch,
    status: int, reply: dict[str, str], is_unknown: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(_Handler, "do_POST", lambda handler: refuse(handler, status, reply))
    monkeypatch.setattr(server, "leads", False)
    server.lacks()
    done = commands.run("cordon a --timeout 0.1 --request-id id")
    told = words.actions.outcome_unknown if is_unknown else words.actions.refused
    assert done.code == ExitCode.START_AGAIN
    assert (
        done.err.startswith(f"rdzvctl: error: {told('')}") and (words.actions.ask_again("id") in done.err) == is_unknown
    )


def test_a_leaders_refusal_is_not_taken_for_the_lack_of_a_leader(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that leads, is ready and cannot do what it is asked refuses it: such as one cordon too many."""
    reply = {"code": "unavailable", "message": "1,000 cordons are too many"}
    monkeypatch.setattr(_Handler, "do_POST", lambda handler: refuse(handler, 503, reply))
    server.lacks()
    done = commands.run("cordon a --timeout 60")
    assert (done.code, done.err.splitlines()) == (ExitCode.FAILED, [f"rdzvctl: error: {reply['message']}"])


def test_a_server_that_does_not_know_the_leader_reports_why(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = {"code": "not_leader", "message": cluster_words.no_leader_found("its database is full")}
    monkeypatch.setattr(_Handler, "do_POST", lambda handler: refuse(handler, 421, reply))
    server.lacks()
    assert reply["message"] in commands.run("stacks running --timeout 0.1").err


@pytest.fixture
def half_led(server: OtherServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give shard 1 no leader, and let the server know these runs only."""

    return lambda *run_ids: leads(server, None, monkeypatch, *run_ids)


def leads(server: OtherServer, other: str | None, monkeypatch: pytest.MonkeyPatch, *run_ids: str) -> None:
    """Let the server lead shard 0 with these runs only, and name `other` as the leader of shard 1."""
    status = server._whole["Status"]
    shards = [status["server"]["shards"][0], {"shard": 1, "leader": other, "leadership": 1}]
    runs = [run for run in status["runs"] if run["run_id"] in run_ids]
    monkeypatch.setitem(server._whole, "Status", {"server": status["server"] | {"shards": shards}, "runs": runs})
    server.lacks()


UNKNOWN = words.connection.unknown_runs([1], None, words.servers.NONE_LEADS, are_shown=False)


@pytest.mark.parametrize("line", ["why", "nodes", "events", "logs 0", "stacks", "bundle", "stop", "restart"])
def test_if_no_run_is_known_but_there_may_be_some_it_says_so(
    half_led: Callable[..., None], commands: Commands, line: str
) -> None:
    half_led()
    done = commands.run(f"{line} --timeout 0.1")
    assert done.code == ExitCode.START_AGAIN and f"rdzvctl: error: {UNKNOWN}\n" in done.err
    assert words.runs.NO_RUN not in done.err


@pytest.mark.parametrize("line", ["stop", "restart", "admit", "resize 1:2"])
def test_an_action_asks_for_the_run_if_there_may_be_others(
    half_led: Callable[..., None], commands: Commands, line: str
) -> None:
    half_led("running")
    done = commands.run(f"{line} --timeout 0.1")
    assert done.code == ExitCode.START_AGAIN and not done.out
    assert f"rdzvctl: error: {UNKNOWN}\n  {words.runs.name_one(['running'], 0)}\n" in done.err
    named = line.replace(" ", " running ") if " " in line else f"{line} running"
    assert words.runs.name_one(["running"], 0) not in commands.run(f"{named} --timeout 0.1").err


def test_the_runs_of_a_leader_that_does_not_know_of_its_shard_are_unknown(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads another shard, and cannot lead this one."""
    with serving() as other:
        leads(server, other.at, monkeypatch, "running")
        leads(other, None, monkeypatch, "restarting")
        done = commands.run("status --timeout 0.1")
        why = words.connection.unknown_runs([1], other.at, words.connection.DOES_NOT_LEAD, are_shown=False)
        assert done.code == ExitCode.START_AGAIN and f"rdzvctl: error: {why}\n" in done.err
        leads(other, other.at, monkeypatch, "restarting")
        found = commands.run("runs")
        assert (found.code, found.err) == (ExitCode.SUCCEEDED, "") and "restarting" in found.out


def test_a_node_may_be_in_a_run_that_is_not_known(half_led: Callable[..., None], commands: Commands) -> None:
    half_led("running")
    assert (
        words.actions.no_run_has("nobody", ["a", "b", "c", "d"]) not in commands.run("drain nobody --timeout 0.1").err
    )


def test_a_limit_of_requests_is_waited_for_and_named(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = {"code": "too_many_requests", "message": "examined just now"}
    monkeypatch.setattr(_Handler, "do_POST", lambda handler: refuse(handler, 429, reply))
    server.lacks()
    done = commands.run("stacks running --timeout 0.3")
    says = words.connection.cannot_now({server.at: reply["message"]})
    assert (done.code, done.err.splitlines()[0]) == (ExitCode.START_AGAIN, f"rdzvctl: error: {says}")


def test_an_answer_without_an_end_is_given_up(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its size nor its time is without a limit, and a stream has no line without an end."""

    def answer(handler: _Handler, piece: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.flush()
        with suppress(OSError):
            while True:
                handler.connection.sendall(piece)
                sleep(0.01)

    monkeypatch.setattr(_Handler, "do_GET", lambda handler: answer(handler, b"x" * 10_000))
    monkeypatch.setattr(client, "LARGEST_ANSWER", 1 << 20)
    done = commands.run("status")
    assert done.code == ExitCode.START_AGAIN and words.connection.answer_too_large(1 << 20) in done.err
    monkeypatch.setattr(_Handler, "do_GET", lambda handler: answer(handler, b"x"))
    monkeypatch.setattr(client, "LAST_BYTE_S", 0.2)
    done = commands.run("status")
    assert done.code == ExitCode.START_AGAIN and words.connection.answer_takes_too_long(0.2) in done.err
    monkeypatch.setattr(client, "LONGEST_LINE", 100)
    found = Client(Target(((server.server_address[0], server.server_port),), "a test"))
    with pytest.raises(LineTooLong):
        list(client.lines_of(found._open(found.target.endpoints[0], "GET", "/v1/watch")))


def test_an_answer_that_ends_early_is_not_taken_for_a_whole_one(
    server: OtherServer, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "9")
        handler.end_headers()
        handler.wfile.write(b"{}")

    monkeypatch.setattr(_Handler, "do_GET", answer)
    done = commands.run("status --timeout 0.1")
    assert has_message(done.err, words.connection.answer_broken_off)


def test_status_names_each_server_of_the_endpoint_that_does_not_answer(
    server: OtherServer, commands: Commands, unused_tcp_port: int
) -> None:
    other = f"127.0.0.1:{unused_tcp_port}"
    whole = commands.run("status")
    for endpoint in (f"{other},{server.at}", f"{server.at},{other}"):
        done = commands.run(f"status --endpoint {endpoint}")
        assert (done.code, done.out) == (ExitCode.START_AGAIN, whole.out)
        (line,) = done.err.splitlines()
        assert line.startswith(f"rdzvctl: error: {words.connection.does_not_answer(other, '')}")
        for command in ("runs", "status running", "why running"):
            assert commands.run(f"{command} --endpoint {endpoint}").code == ExitCode.SUCCEEDED, "all of it is known"


@pytest.mark.parametrize(
    ("given", "environment", "program"),
    [
        ({}, {}, "rdzvctl"),
        ({"run_id": "r", "timeout": 3.0}, {"RDZV_ENDPOINT": "a:1"}, "rdzvctl"),
        ({"endpoint": "a:1,b:1", "json": True}, {}, "rdzvctl --endpoint a:1,b:1"),
        ({"context": "my lab"}, {}, "rdzvctl --context 'my lab'"),
        ({"token_file": "t", "endpoint": "a:1", "tls_ca": "~/ca"}, {}, "rdzvctl --endpoint a:1 --token-file t "
         "--tls-ca '~/ca'"),
    ],
    ids=["nothing", "the environment", "endpoint", "context", "credentials"],
)  # fmt: skip
def test_only_the_flags_for_the_server_are_repeated_in_printed_commands(
    given: dict[str, Any], environment: dict[str, str], program: str
) -> None:
    assert Session(given, environment).program == program


def test_commands_of_why_repeat_the_flags_for_the_server(server: OtherServer, commands: Commands) -> None:
    server.lacks()
    step = read_output("failed", 0).replace("rdzvctl ", f"rdzvctl --endpoint {server.at} ")
    assert words.runs.next_step(step) in commands.run("why failed").out.splitlines()


def test_a_watcher_sees_trouble_begin_and_end(server: OtherServer, commands: Commands) -> None:
    with Session({"endpoint": server.at}, {}) as session:
        changes = session.changes("running")
        for reason in (None, "disk full", None):
            server.lacks(unhealthy_reason=reason)
            next(changes)
            assert ("cannot decide anything now: disk full" in session.unhealthy_reason) is bool(reason)


@pytest.mark.parametrize("command", [*cli.all_commands()], ids=lambda command: command.name)
def test_the_example_in_a_commands_help_is_a_valid_command_line(command):
    assert cli.make_parser().parse_args([command.name, *shlex.split(command.example)]).do
