"""Bundle of a run for a bug report: all that servers and agents report about it, in one archive without secrets."""

import gzip
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from getpass import getuser
from socket import gethostname
from typing import Any, NamedTuple

import rdzv_protocol
from rdzv_protocol import paths
from rdzv_protocol.flag_values import LOG_STREAMS, MOST_LOG_LINES

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.errors import BadInput, CtlError
from rdzvctl.output import aligned, writing
from rdzvctl.redaction import Anonymizer, Redactor, secrets_of
from rdzvctl.session import Session
from rdzvctl.views import explanation, lines, state, tables

MOST_AGENTS = 16
"""Most agents that `bundle` asks for their descriptions."""
README = "README.md"
_IS_OURS = re.compile(r"RDZV_|(?i:(?:https?|all|no)_proxy$)|SSL_CERT_")
"""Environment variables that change what `rdzvctl` does. The bundle names those that are set."""
TO_STDOUT = "-"
AGENTS = "agents/"
"""Folder of the files about agents. Each file has the name of the agent's node."""
_IS_FILE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


class Missing(NamedTuple):
    """Part that a bundle lacks, and the reason as a sentence."""

    what: str
    why: str


def bundle(session: Session) -> None:
    """Write the bundle of a run to a file or to stdout, with everything that could be learned."""
    began = time.localtime()
    target = session.given.get("output", "")
    _check(target, session)
    run = session.run()
    parts = Parts(session, run)
    try:
        parts.gather()
    finally:
        session.out.progress("")
    files, anonymizer = parts.files, None
    if session.given.get("anonymize"):
        anonymizer = _anonymizer(session, run)
        files = anonymized(files, anonymizer)
    run_id = anonymizer.text(run["run_id"]) if anonymizer else run["run_id"]
    stamp = time.strftime("%Y%m%d-%H%M%S", began)
    name = f"rdzv-bundle-{re.sub(r'[^A-Za-z0-9._-]+', '_', run_id)[:60]}-{stamp}"
    missing = [Missing(each.what, _clean(each.why, parts.redactor, anonymizer)) for each in parts.missing]
    readme = words.bundle.bundle_readme(
        run_id, time.strftime("%Y-%m-%d %H:%M:%S %z", began), [*files], missing, is_anonymous=anonymizer is not None
    )
    data = archive(name, {README: f"{readme}\n", **files}, time.mktime(began))
    path = target or f"{name}.tar.gz"
    _write(path, data)
    if session.out.is_json:
        shown = [each._asdict() for each in missing]
        return session.out.json({"file": path, "bytes": len(data), "files": [README, *files], "missing": shown})
    message = words.bundle.bundle_written(path, len(files) + 1, len(data), len(missing))
    return session.out.note(message) if path == TO_STDOUT else session.out.paragraph(message)


def _check(target: str, session: Session) -> None:
    """Raise `BadInput` if the bundle could not be written, before any server is asked."""
    if target == TO_STDOUT:
        if session.out.is_json:
            raise BadInput(words.bundle.ONE_ON_STDOUT)
        if session.out.is_terminal:
            raise BadInput(words.bundle.NO_ARCHIVE_AT_TERMINAL)
    elif target and os.path.lexists(target):
        raise BadInput(words.bundle.file_exists(target))
    elif not os.access(folder := os.path.dirname(target) or ".", os.W_OK | os.X_OK):
        why = os.strerror(13 if os.path.isdir(folder) else 2)
        raise BadInput(words.contexts.cannot_write(target or folder, why))


def _clean(text: str, redactor: Redactor, anonymizer: Anonymizer | None) -> str:
    text = redactor.text(text)
    return anonymizer.text(text) if anonymizer else text


class Parts:
    """Files of a bundle, by name, and what is missing."""

    def __init__(self, session: Session, run: Fields) -> None:
        self._session, self._run = session, run
        self.files: dict[str, Any] = {}
        self.missing: list[Missing] = []
        self.redactor = Redactor([session.client.token, *secrets_of(session.environment)])

    def gather(self) -> None:
        """Ask for all parts, one after the other. The stacks come first, so that the events include that question."""
        self._part("stacks", self._stacks)
        self._part("logs", self._logs)
        self._part("agents", self._agents)
        self._part("events", self._events)
        self._part("metrics", self._metrics)
        self._part("status", self._status)
        self._part("report", self._report)

    def _part(self, what: str, get: Callable[[], None]) -> None:
        self._session.out.progress(words.bundle.asking_for(what))
        try:
            get()
        except CtlError as error:
            self.missing.append(Missing(what, str(error)))

    def _json(self, name: str, value: Any) -> None:
        self.files[name] = json.dumps(self.redactor.value(value), indent=2, ensure_ascii=False) + "\n"

    def _text(self, name: str, text: str) -> None:
        self.files[name] = self.redactor.text(text.rstrip("\n")) + "\n"

    def _stacks(self) -> None:
        if state.is_over(self._run):
            self.missing.append(Missing("stacks", words.bundle.ENDED_HAS_NO_WORKERS))
            return
        wanted = {"run_id": self._run["run_id"], "rank": None, "reason": words.bundle.FOR_A_BUNDLE}
        found = self._session.client.ask(paths.STACKS, wanted)
        self._json("stacks.json", found)
        shown = [words.logs.in_round(found["round"], found["sentence"]), *found["stack"], lines.of_stack_files(found)]
        self._text("stacks.txt", "\n".join(shown))
        self.missing += [Missing("stacks", problem) for problem in found["problems"]]

    def _logs(self) -> None:
        """Add the ends of the logs of rank 0 and of each rank that has failed."""
        for rank in guilty_ranks(self._run):
            place = lines.worker(self._run, rank)
            refusals: dict[str, list[str]] = {}
            for stream in LOG_STREAMS:
                what = words.bundle.stream_of_rank([stream], rank)
                self._session.out.progress(words.bundle.asking_for(what))
                body = {"run_id": self._run["run_id"], "rank": rank, "stream": stream, "lines": MOST_LOG_LINES}
                try:
                    found = self._session.client.ask(paths.LOGS, body)
                    self._text(f"logs/rank_{rank}.{stream}.txt", "\n".join(lines.of_text(found["text"])))
                except CtlError as error:
                    refusals.setdefault(str(error), []).append(stream)
            for why, streams in refusals.items():
                where = lines.of_log(place, None) if place and place.path else ""
                what = words.bundle.stream_of_rank(streams, rank)
                self.missing.append(Missing(what, words.bundle.missing_log(why, where)))

    def _agents(self) -> None:
        """Add the descriptions of agents, first of those with rank 0 and with failed ranks."""
        if state.is_over(self._run):
            self.missing.append(Missing("agents", words.bundle.ENDED_HAS_NO_AGENTS))
            return
        nodes = nodes_to_ask(self._run)
        for number, node_id in enumerate(nodes[:MOST_AGENTS], 1):
            what = words.bundle.agent_of_node(node_id)
            self._session.out.progress(words.bundle.asking_for(what))
            try:
                found = self._session.client.ask(paths.DESCRIBE, {"run_id": self._run["run_id"], "node_id": node_id})
                name = node_id if _IS_FILE_NAME.fullmatch(node_id) else f"agent_{number}"
                self._json(f"{AGENTS}{name}.json", found)
            except CtlError as error:
                self.missing.append(Missing(what, str(error)))
        if more := len(nodes[MOST_AGENTS:]):
            self.missing.append(Missing(words.bundle.more_agents(more), words.bundle.asks_at_most(MOST_AGENTS)))

    def _events(self) -> None:
        found = self._session.client.latest_events(self._run["run_id"], 0)
        shown = map(self.redactor.value, found.events)
        self.files["events.jsonl"] = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in shown)
        self._text("events.txt", "\n".join(map(lines.of_event, found.events)))
        if found.events and (first := found.events[0]["number"]) > 1:
            self.missing.append(Missing("events", words.bundle.events_dropped(first - 1)))

    def _metrics(self) -> None:
        text = self._session.client.metrics()
        mark = f'run_id="{_label(self._run["run_id"])}"'
        kept = (line for line in text.splitlines() if line[:1] != "#" and ("run_id=" not in line or mark in line))
        self._text("metrics.txt", "\n".join(kept))

    def _status(self) -> None:
        """Add the current run, its settings, its servers, and the versions of all programs that report theirs."""
        found = self._session.overview(self._run["run_id"])
        self._run = next(iter(found.runs), self._run)
        self._json("status.json", self._run)
        self._json("settings.json", self._run["settings"])
        self._json("servers.json", found.servers)
        here = {
            "program": "rdzvctl", "version": rdzv_protocol.VERSION, "python": platform.python_version(),
            "platform": platform.platform(), "variables": sorted(filter(_IS_OURS.match, self._session.environment)),
        }  # fmt: skip
        servers = [
            {"program": "rdzv-server", "address": each["address"], "version": each["version"], "python": self._python()}
            for each in found.servers
        ]
        self._json("versions.json", [here, *servers])

    def _python(self) -> str:
        """Return the version of the server's Python, from its metrics; empty if unknown."""
        found = re.search(r'server_build_info\{.*?python="([^"]*)"', self.files.get("metrics.txt", ""))
        return found[1] if found else ""

    def _report(self) -> None:
        """Add what `rdzvctl status RUN` shows, then each failure with its evidence."""
        run, servers = self._run, self._session.for_views
        why = explanation.why(run, servers._replace(program=state.PROGRAM))
        shown = [
            why.text,
            *why.next,
            "",
            explanation.time_line(run),
            explanation.restarts_line(run),
            "",
            aligned(tables.nodes_table(run)),
        ]
        if run["history"]:
            shown += ["", aligned(tables.restarts_table(run))]
        self._text("report.txt", "\n".join(shown))
        failures = [each for name in ("first_failure", "end_failure") if (each := run[name])]
        failures += [each for each in run["failures"] if each not in failures]
        if failures:
            self._text("evidence.txt", "\n\n".join("\n".join(_evidence(each)) for each in _distinct(failures)))


def _evidence(failure: Fields) -> Iterator[str]:
    yield words.logs.in_round(failure["round"], lines.of_failure(failure))
    if failure["hint"]:
        yield failure["hint"]
    written = "output" if failure["both_streams"] else "stderr"
    for name, label in (("traceback", "traceback"), ("stderr_tail", written)):
        if failure[name]:
            yield f"{label}:"
            yield from (f"    {line}" for text in failure[name] for line in text.splitlines())


def _distinct(failures: list[Fields]) -> Iterator[Fields]:
    """Yield the failures without duplicates, such as one that is both the first and the last."""
    seen: list[Mapping[str, Any]] = []
    for each in failures:
        if each not in seen:
            seen.append(each)
            yield each


def guilty_ranks(run: Fields) -> list[int]:
    """Return rank 0, and the ranks to blame for the first failure, the last one, and the one that ended the run."""
    failures = [run["first_failure"], run["end_failure"], *run["failures"][-1:]]
    ranks = [each["rank"] for each in failures if each and each["singled_out"]]
    return [*dict.fromkeys((0, *ranks))]


def nodes_to_ask(run: Fields) -> list[str]:
    """Return the nodes of the run's agents, first those with rank 0 and with ranks that are to blame."""
    workers = (lines.worker(run, rank) for rank in guilty_ranks(run))
    return [*dict.fromkeys([*(each.node_id for each in workers if each), *(node["node_id"] for node in run["nodes"])])]


def _label(value: str) -> str:
    """Return the value in the text format of Prometheus."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# Names.


def _anonymizer(session: Session, run: Fields) -> Anonymizer:
    """Return an anonymizer that knows the names that the answers have in fields of their own."""
    gone = [*run["departures"], *(each for each in (run["first_failure"], run["end_failure"]) if each)]
    cordons = [cordon for server in session.servers for cordon in server["cordons"]]
    nodes = [each["node_id"] for each in (*run["nodes"], *gone, *run["failures"], *cordons)]
    hosts = [host for host, _ in session.client.target.endpoints] + [gethostname()]
    hosts += [address.rpartition(":")[0].strip("[]") for server in session.servers
              for address in (server["address"], *(shard["leader"] or "" for shard in server["shards"]))]  # fmt: skip
    hosts += [each["addr"] for each in run["nodes"]]
    users = [*(cordon["by"] for cordon in cordons), _own_name()]
    short = [name.partition(".")[0] for name in (*nodes, *hosts) if "." in name and not name[:1].isdigit()]
    return Anonymizer(run=[run["run_id"]], node=nodes, host=[*hosts, *short], user=users)


def _own_name() -> str:
    with suppress(OSError, KeyError):
        return "" if (name := getuser()) == "root" else name
    return ""


def anonymized(files: Mapping[str, str], anonymizer: Anonymizer) -> dict[str, str]:
    """Return the files with other names, in values only: fields keep their names."""
    for name, text in files.items():
        for value in _values(name, text):
            anonymizer.learn_value(value)
    return {_file_name(name, anonymizer): _renamed(name, text, anonymizer) for name, text in files.items()}


def _file_name(name: str, anonymizer: Anonymizer) -> str:
    """Return the name of a file with another name for its node."""
    if not name.startswith(AGENTS):
        return name
    return f"{AGENTS}{anonymizer.text(name.removeprefix(AGENTS).removesuffix('.json'))}.json"


def _values(name: str, text: str) -> list[Any]:
    """Return the JSON documents in a file, or else its text."""
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return [json.loads(text)] if name.endswith(".json") else [text]


def _renamed(name: str, text: str, anonymizer: Anonymizer) -> str:
    changed = [anonymizer.value(value) for value in _values(name, text)]
    if name.endswith(".jsonl"):
        return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in changed)
    return json.dumps(changed[0], indent=2, ensure_ascii=False) + "\n" if name.endswith(".json") else changed[0]


# The archive.


def archive(folder: str, files: Mapping[str, str], at: float) -> bytes:
    """Return the files as a tar.gz with one folder. No file has the name of a user of this machine."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=at) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, text in files.items():
            data = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(at), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _write(path: str, data: bytes) -> None:
    """Write the archive, which other users cannot read. It is written completely or not at all."""
    if path == TO_STDOUT:
        with writing():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            try:
                file.write(data)
                file.flush()
            except BaseException:
                os.unlink(path)
                raise
    except FileExistsError:
        raise BadInput(words.bundle.file_exists(path)) from None
    except OSError as error:
        raise BadInput(words.contexts.cannot_write(path, error.strerror)) from None
