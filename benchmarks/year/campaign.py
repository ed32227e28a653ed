"""Real processes with faults: nodes with their agents, an injector that records its faults, and the score.

A node is an agent with all processes that it has started, in a network namespace of its own if root can create one. All
processes of a node that dies are stopped (SIGSTOP): its connections stay open, and nothing is ever sent on them. A node
that is cut off continues without its network; if there are no namespaces, it is stopped for a while.
"""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import dropwhile, takewhile
from random import Random
from statistics import quantiles
from typing import Any
from urllib.error import HTTPError

from benchmarks.stage import Broken, Program, Stage, free_port
from benchmarks.year import kinds, trace
from benchmarks.year.contenders import RUN_ID, TOKENS, Contender, ask, events, node_id
from benchmarks.year.kinds import Kind
from benchmarks.year.network import Network
from tests.support.process_info import children, command_line, is_running, state

GAP_S = (12.0, 20.0)
"""Shortest and longest seconds between two faults, drawn evenly."""
REPAIR_S = (12.0, 30.0)
PERSON_S = 15.0
"""Seconds from the moment when a person is needed until the person has started everything again."""
STUCK_S = 75.0
"""Seconds without a step after which a person is needed."""
START_TIMEOUT_S = 240.0
RESTART_S = 45.0
"""Least seconds that a person waits for the first step after starting everything again."""
RATE_S = 8.0
"""Seconds without faults in which the speed of the training is measured."""
SECOND_AFTER_S = 0.4
DIES_S = 1.0
"""Longest wait for the end of a killed process."""
CHECK_INTERVAL_S = 0.05
ENDED = re.compile(r"^[EW](\d{4} [\d:.]+).*failed \(exitcode: (-?\d+)\).*\(pid: (\d+)\)", re.M)
"""Pattern of torchrun's line about an ended worker."""
NAMING = ("workers_failed", "node_lost", "node_left", "node_drained", "hang_found")
"""Our events that name a node as the reason for the end of a round."""
STARTED = "round_started"


@dataclass(frozen=True, slots=True)
class Planned:
    """Planned fault. `pick` selects one of the nodes in the run."""

    at_s: float
    title: str
    pick: float
    repair_s: float


SERVER_KILLED, DOUBLE, LEMON = "server killed", "second fault during recovery", "lemon"
TITLES = (*(str(kind) for kind in Kind), SERVER_KILLED, DOUBLE, LEMON)


def plan(seed: int, minutes: float) -> list[Planned]:
    """Return the faults of a campaign: first each title once, in random order, then as often as in the trace."""
    rng, planned, at_s = Random(seed), [], 0.0
    deck = list(TITLES)
    rng.shuffle(deck)
    while (at_s := at_s + rng.uniform(*GAP_S)) < 60 * minutes - max(GAP_S):
        row = rng.choice(trace.load())
        title = deck.pop() if deck else str(kinds.draw(row.class_, row.description, rng))
        planned.append(Planned(at_s, title, rng.random(), rng.uniform(*REPAIR_S)))
    return planned


@dataclass(slots=True)
class Injected:
    """Injected fault and its result. Times are monotonic seconds."""

    title: str
    node: int
    rank: int
    pid: int
    at_s: float
    planned_s: float = 0.0
    """Planned time."""
    recovered_s: float | None = None
    needs_recovery: bool = True
    named: bool | None = None
    """Whether the launcher named this node, or this worker, first; None if there was nothing to name."""
    log_at: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        took_s = self.recovered_s - self.at_s if self.recovered_s else None
        return {
            "title": self.title,
            "planned_s": self.planned_s,
            "node": self.node,
            "recovery_s": took_s,
            "named": self.named,
        }


@dataclass(slots=True)
class Score:
    """Result of one contender."""

    name: str
    about: str
    wall_s: float = 0.0
    rate: float = 0.0
    """Steps a second without faults."""
    steps: int = 0
    repeated: int = 0
    persons: int = 0
    survived: int = 0
    """Number of faults before a person was first needed."""
    faults: list[Injected] = field(default_factory=list)
    progress: list[tuple[float, int]] = field(default_factory=list)
    """Highest step by time, for the plot."""
    trouble: str = ""
    cuts: str = "pulling the cable of a network namespace"
    """Way in which nodes were cut off."""

    @property
    def ettr(self) -> float:
        return self.steps / self.rate / self.wall_s if self.rate and self.wall_s else 0.0

    @property
    def recoveries_s(self) -> list[float]:
        return [each.recovered_s - each.at_s for each in self.faults if each.recovered_s and each.needs_recovery]

    @property
    def named(self) -> tuple[int, int]:
        """Number of root causes that were named correctly, and of all."""
        asked = [each.named for each in self.faults if each.named is not None]
        return sum(asked), len(asked)

    def recovery(self, percent: int) -> float | None:
        times = self.recoveries_s
        if len(times) < 2:
            return times[0] if times else None
        return quantiles(times, n=100, method="inclusive")[percent - 1]

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ettr": self.ettr,
            "recovery_p50_s": self.recovery(50),
            "recovery_p99_s": self.recovery(99),
            "named": self.named,
            "faults": [each.as_json() for each in self.faults],
        }


class Campaign:
    """One contender on `nodes` nodes and some spares, all on this machine."""

    def __init__(self, contender: Contender, nodes: int, spares: int, note: Callable[[str], None]) -> None:
        self.score = Score(contender.name, contender.about)
        self._contender, self._nodes, self._spares = contender, nodes, spares
        self._note = note
        self._programs: dict[int, Program] = {}
        self._stopped: dict[int, list[int]] = {}
        """Processes of nodes that are dead or cut off."""
        self._out: set[int] = set()
        """Nodes that wait for repair."""
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._server: Program | None = None
        self._read = 0
        self._highest = self._first = 0
        self._last_step_s = 0.0
        self._attempt = ""
        self._lines = 0
        self._starts = 0

    def play(self, planned: Iterable[Planned], minutes: float) -> Score:
        """Inject the faults, and return the score. Errors do not prevent that, and no process is left."""
        with Network(self._nodes + self._spares) as self._network, Stage() as self._stage:
            if self._network.why_impossible:
                self.score.cuts = f"stopping the node ({self._network.why_impossible})"
            try:
                self._begin()
                self._endure(list(planned), 60 * minutes)
            except Exception as error:
                self.score.trouble = f"{type(error).__name__}: {error}"
                self._note(f"{self._contender.name}: {self.score.trouble}")
            self._continue_stopped()
        return self.score

    # The course.

    def _begin(self) -> None:
        host = self._network.address if self._contender.is_ours else self._network.address_of(0)
        self._endpoint = f"{host}:{free_port()}"
        for name, token in TOKENS.items():
            with open(os.path.join(self._stage.folder, name), "x", encoding="ascii", opener=_for_us_alone) as file:
                file.write(f"{token}\n")
        self._start_server()
        for node in range(self._nodes + self._spares):
            self._start(node)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._lines:
            if time.monotonic() > deadline_s:
                last = self._stage.log_tails()[-1500:]
                raise Broken(f"no step within {START_TIMEOUT_S:g} s of the start of its agents\n{last}")
            self._look()
        began_s, began_at = time.monotonic(), self._highest
        self._wait(RATE_S)
        self.score.rate = (self._highest - began_at) / (time.monotonic() - began_s)
        self._note(f"{self._contender.name}: trains, {self.score.rate:.1f} steps/s")

    def _endure(self, planned: list[Planned], for_s: float) -> None:
        self._began_s, self._first, lines = time.monotonic(), self._highest, self._lines
        self._last_step_s = self._began_s
        while (now := time.monotonic()) < self._began_s + for_s:
            while planned and planned[0].at_s <= now - self._began_s:
                self._strike(planned.pop(0))
            self._do_what_is_due(now)
            self._look()
            if self._needs_person():
                self._person()
        self.score.wall_s = time.monotonic() - self._began_s
        self.score.steps = self._highest - self._first
        self.score.repeated = self._lines - lines - self.score.steps
        if not self.score.persons:
            self.score.survived = len(self.score.faults)
        self._name_all()

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._look()

    def _do_what_is_due(self, now: float) -> None:
        for item in [item for item in self._due if item[0] <= now]:
            self._due.remove(item)
            item[1]()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, call))

    # Journal of the trainer.

    def _look(self) -> None:
        time.sleep(CHECK_INTERVAL_S)
        with suppress(FileNotFoundError):
            with open(self._path("journal"), encoding="ascii") as file:
                file.seek(self._read)
                text = file.read()
            complete = text[: text.rfind("\n") + 1]
            self._read += len(complete)
            for line in complete.splitlines():
                at_s, step, attempt = line.split()
                self._stepped(float(at_s), int(step), attempt)

    def _stepped(self, at_s: float, step: int, attempt: str) -> None:
        self._lines += 1
        self._last_step_s = at_s
        if attempt != self._attempt:
            self._attempt = attempt
            for each in self.score.faults:
                if each.needs_recovery and each.recovered_s is None and each.at_s < at_s:
                    each.recovered_s = at_s
        if step > self._highest:
            self._highest = step
            if self.score.rate:
                self.score.progress.append((round(at_s - self._began_s, 2), step - self._first))

    # Nodes.

    def _start_server(self) -> None:
        command = self._contender.server(self._endpoint, self._stage.folder)
        if command:
            self._server = self._stage.start(command, name=self._fresh("server"))
            host, _, port = self._endpoint.rpartition(":")
            self._stage.wait_for_port(int(port), host)

    def _start(self, node: int) -> None:
        self._stopped.pop(node, None)
        self._out.discard(node)
        nnodes = f"{self._nodes - 2}:{self._nodes}"
        address = self._network.address_of(node)
        command = self._contender.agent(node, nnodes, self._endpoint, address, self._stage.folder)
        environment = {
            **self._contender.environment,
            "YEAR_NODE": str(node),
            "YEAR_ADDRESS": address,
            "YEAR_FOLDER": self._stage.folder,
        }
        command = self._network.command(node, command)
        self._programs[node] = self._stage.start(command, environment, name=self._fresh(f"node{node}"))

    def _fresh(self, name: str) -> str:
        self._starts += 1
        return f"{name}.{self._starts}"

    def _participants(self) -> list[tuple[int, int, int]]:
        """Return the nodes whose workers run in the latest round, each with the worker's pid and rank."""
        found = []
        for node in sorted(set(self._programs) - self._out):
            with suppress(FileNotFoundError, ValueError):
                with open(self._path(f"worker-{node}"), encoding="ascii") as file:
                    pid, rank, _ = map(int, file.read().split())
                if _goes_on(pid):
                    found.append((node, pid, rank))
        return found

    def _processes(self, node: int) -> list[int]:
        return list(_tree(self._programs[node].pid))

    def _kill(self, node: int) -> None:
        """Kill all processes of the node: first the loop, which would start others, then the agent and its workers."""
        for pid in self._processes(node):
            _end(pid)

    # Faults.

    def _strike(self, planned: Planned) -> None:
        there = self._participants()
        if not there:
            return
        node, pid, rank = there[int(planned.pick * len(there))]
        fault = Injected(planned.title, node, rank, pid, time.monotonic(), planned.at_s)
        fault.log_at = {name: _size(self._log(name)) for name in self._stage.programs}
        self.score.faults.append(fault)
        self._note(f"{self._contender.name}: {planned.at_s:4.0f} s: {planned.title}, node{node}")
        _INJECTIONS[planned.title](self, fault, planned.repair_s)

    def _crash(self, fault: Injected, repair_s: float) -> None:
        _signal(fault.pid, signal.SIGKILL)

    def _hang(self, fault: Injected, repair_s: float) -> None:
        _signal(fault.pid, signal.SIGSTOP)

    def _die(self, fault: Injected, repair_s: float) -> None:
        self._freeze(fault.node)
        self._later(repair_s, lambda: self._replace(fault.node))

    def _cut(self, fault: Injected, repair_s: float) -> None:
        if self._network.why_impossible:
            self._freeze(fault.node)
            self._later(repair_s, lambda: self._thaw(fault.node))
        else:
            self._out.add(fault.node)
            self._network.cut(fault.node)
            self._later(repair_s, lambda: self._mend(fault.node))

    def _kill_agent(self, fault: Injected, repair_s: float) -> None:
        self._out.add(fault.node)
        self._kill(fault.node)
        self._later(repair_s, lambda: self._start(fault.node))

    def _slow(self, fault: Injected, repair_s: float) -> None:
        fault.needs_recovery = False
        self._touch(f"slow-{fault.node}")
        self._later(repair_s, lambda: self._remove(f"slow-{fault.node}"))

    def _drain(self, fault: Injected, repair_s: float) -> None:
        self._out.add(fault.node)
        if self._contender.is_ours:
            drained = {"node_id": node_id(fault.node), "reason": "a change", "deadline_s": 2, "for_s": repair_s}
            try:
                ask(self._endpoint, "/v1/nodes/drain", drained)
            except HTTPError as refusal:
                raise Broken(f"rdzv-server refused a drain: {refusal.read().decode()}") from None
            except OSError:
                self._note("  the server is not there: nothing is drained")
        else:
            for pid in self._processes(fault.node):
                _signal(pid, signal.SIGTERM if _is_launcher(pid) else signal.SIGKILL)
        self._later(repair_s, lambda: self._replace(fault.node))

    def _kill_server(self, fault: Injected, repair_s: float) -> None:
        """Kill the server; the service manager starts it again. torchrun's store is in the agent of node 0."""
        if self._server:
            fault.needs_recovery = False
            _signal(self._server.pid, signal.SIGKILL)
            self._later(0.5, self._start_server)
        else:
            fault.node = 0
            self._out.add(0)
            self._kill(0)
            self._later(0.5, lambda: self._start(0))

    def _double(self, fault: Injected, repair_s: float) -> None:
        self._crash(fault, repair_s)
        others = [node for node, _, _ in self._participants() if node != fault.node]
        if others:
            second = others[fault.pid % len(others)]
            self._later(SECOND_AFTER_S, lambda: self._kill_agent(_of(second), repair_s))

    def _lemon(self, fault: Injected, repair_s: float) -> None:
        """Crash a worker; later workers on this node fail as well until the node is repaired."""
        self._touch(f"broken-{fault.node}")
        self._later(repair_s, lambda: self._remove(f"broken-{fault.node}"))
        self._crash(fault, repair_s)

    def _freeze(self, node: int) -> None:
        self._out.add(node)
        self._stopped[node] = pids = self._processes(node)
        for pid in pids:
            _signal(pid, signal.SIGSTOP)

    def _mend(self, node: int) -> None:
        self._network.mend(node)
        self._out.discard(node)

    def _thaw(self, node: int) -> None:
        for pid in reversed(self._stopped.pop(node, [])):
            _signal(pid, signal.SIGCONT)
        self._out.discard(node)

    def _replace(self, node: int) -> None:
        """Bring back a machine without any of its earlier processes."""
        self._kill(node)
        self._start(node)

    def _continue_stopped(self) -> None:
        for node in list(self._stopped):
            self._thaw(node)

    # A person.

    def _needs_person(self) -> bool:
        now = time.monotonic()
        if now - self._last_step_s > STUCK_S:
            return True
        up = [node for node, program in self._programs.items() if node not in self._out and program.exit_code is None]
        return len(up) < self._nodes - 2 and not any(self._due) and now - self._last_step_s > 2

    def _person(self) -> None:
        """Kill the remaining processes, and start all nodes that are not out, as a person would."""
        score = self.score
        if not score.persons:
            score.survived = len(score.faults)
        score.persons += 1
        self._note(f"{self._contender.name}: a person is needed, after {len(score.faults)} faults")
        for node in set(self._programs) - self._out:
            self._kill(node)
        waited_s = time.monotonic() + PERSON_S
        while time.monotonic() < waited_s:
            self._do_what_is_due(time.monotonic())
            time.sleep(CHECK_INTERVAL_S)
        for node in sorted(set(self._programs) - self._out):
            if self._programs[node].exit_code is not None:
                self._start(node)
        self._last_step_s = time.monotonic() + RESTART_S

    # Named nodes and workers.

    def _name_all(self) -> None:
        """Compare what the launcher named first after each fault with the fault itself."""
        said = self._events() if self._contender.is_ours else []
        ends = [each.at_s for each in self.score.faults[1:]] + [float("inf")]
        offset_s = time.time() - time.monotonic()
        for each, until_s in zip(self.score.faults, ends, strict=True):
            if each.title in (str(Kind.SLOW), SERVER_KILLED):
                continue
            if self._contender.is_ours:
                since = [e for e in said if each.at_s - 0.05 <= e["at"] - offset_s < until_s]
                each.named = blamed(since) == node_id(each.node)
            else:
                each.named = self._first_pid(each) == each.pid

    def _events(self) -> list[dict[str, Any]]:
        """Return the events of the run in order."""
        try:
            return events(self._endpoint, RUN_ID)
        except OSError as error:
            raise Broken(f"rdzv-server does not say who was named: {error}") from None

    def _first_pid(self, fault: Injected) -> int | None:
        """Return the worker that torchrun's agents together named as the first to end after the fault."""
        found = []
        for name in self._stage.programs:
            if not name.startswith("server"):
                with open(self._log(name), encoding="utf-8", errors="replace") as file:
                    file.seek(fault.log_at.get(name, 0))
                    found += [(match[1], int(match[3])) for match in ENDED.finditer(file.read())]
        return min(found)[1] if found else None

    # Files.

    def _path(self, name: str) -> str:
        return os.path.join(self._stage.folder, name)

    def _log(self, name: str) -> str:
        return self._path(f"{name}.log")

    def _touch(self, name: str) -> None:
        with open(self._path(name), "w"):
            pass

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.remove(self._path(name))


_INJECTIONS: dict[str, Callable[[Campaign, Injected, float], None]] = {
    str(Kind.CRASH): Campaign._crash,
    str(Kind.HANG): Campaign._hang,
    str(Kind.DEATH): Campaign._die,
    str(Kind.CUT): Campaign._cut,
    str(Kind.AGENT_KILLED): Campaign._kill_agent,
    str(Kind.SLOW): Campaign._slow,
    str(Kind.DRAIN): Campaign._drain,
    SERVER_KILLED: Campaign._kill_server,
    DOUBLE: Campaign._double,
    LEMON: Campaign._lemon,
}


def blamed(said: Iterable[dict[str, Any]]) -> str | None:
    """Return the node that ended the first of these rounds, by the launcher's events.

    A lost node explains failures on others. A round may have started just after the fault that ended it.
    """
    telling = (event for event in said if event["kind"] in (*NAMING, STARTED))
    since = dropwhile(lambda event: event["kind"] == STARTED, telling)
    named = list(takewhile(lambda event: event["kind"] != STARTED, since))
    losses = [event for event in named if event["kind"] == "node_lost"]
    return (losses or named)[0].get("node_id") if named else None


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _of(node: int) -> Injected:
    return Injected("", node, 0, 0, 0.0)


def _signal(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _end(pid: int) -> None:
    """Kill a process. It has closed its connections on return, unless it still runs after `DIES_S`."""
    with suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb", buffering=0) as process:
        signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
        select.select([process], [], [], DIES_S)


def _goes_on(pid: int) -> bool:
    """Return whether the process runs and is not stopped."""
    return is_running(pid) and state(pid) != "T"


def _is_launcher(pid: int) -> bool:
    return "torch.distributed.run" in command_line(pid).split("\0")


def _tree(pid: int) -> Iterator[int]:
    """Yield the pids of the process and its descendants, parents first."""
    yield pid
    below: set[int] = set()
    with suppress(OSError):  # the process is gone
        below = children(pid)
    for child in below:
        yield from _tree(child)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
