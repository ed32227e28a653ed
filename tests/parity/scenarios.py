"""Scenarios in which torchrun shows a defect. Each starts real agents, does something to them, and observes.

Each is a function `(stage, launcher) -> Observation` that does not know the launcher. One condition judges both.
"""

import base64
import binascii
import http.client
import os
import pickle
import pickletools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from rdzv_protocol import paths

from benchmarks.launchers import ADDRESS, RUN_ID, Launcher
from tests.parity.findings import Observation
from tests.parity.run import AS_IT_COMES, KEEP_ALIVE_S, KEEP_ALIVES, OURS, WITH_OWN_STORE, Run, alone, codes, kill
from tests.parity.stage import START_S, Stage
from tests.support.process_info import is_running

SCALE_UP_LIMIT_S = 90.0
"""torchrun stops waiting for a key of its store after 60 s."""


def scale_up(stage: Stage, launcher: Launcher) -> Observation:
    """A third node arrives at a run of two to three."""
    run = Run(stage, launcher, nnodes="2:3", kind="together")
    run.form("ab", "stepped")
    began_s = time.monotonic()
    run.start("c")
    return joined(run, "abc", began_s)


def joined(run: Run, names: str, began_s: float) -> Observation:
    """Return whether these nodes' workers step together, and then succeed."""
    reports = run.goes_on(names, began_s, SCALE_UP_LIMIT_S, "stepped")
    if not reports:
        ended, took_s = run.exit_codes(names, within_s=0), time.monotonic() - began_s
        return Observation(False, f"no step together; agents' exit codes {ended} after {{took}}", took_s)
    took_s = max(report.at_s for report in reports) - began_s
    well, ended_in_words = run.finish(names)
    return Observation(well, f"{len(names)} nodes step together after {{took}}; {ended_in_words}", took_s)


def replacement(stage: Stage, launcher: Launcher) -> Observation:
    """One of two nodes is lost, and another one starts in its place.

    Under torchrun the lost node is not the store's host.
    """
    run = Run(stage, launcher, nnodes="2", kind="together")
    run.form("ab", "stepped")
    lost_s = run.lose("b")
    run.start("c")
    return joined(run, "ac", lost_s)


ONE_CRASH_LIMIT_S = 60.0
ONE_CRASH_SETTLE_S = 3.0
"""Seconds for which the workers must stay: a second restart comes within a second or two."""
ONE_CRASH_NPROC = 2


def one_crash(stage: Stage, launcher: Launcher) -> Observation:
    """One of four workers is killed, which should cost one restart."""
    run = Run(stage, launcher, nnodes="2", nproc=ONE_CRASH_NPROC, kind="together")
    workers = run.form("ab", "stepped")
    killed_s = kill(next(worker.pid for worker in workers if worker.rank == 2 * ONE_CRASH_NPROC - 1))
    recovered = stage.until(lambda: _steady(run, killed_s) or run.have_ended("ab"), ONE_CRASH_LIMIT_S)
    starts = _starts(run, killed_s)
    if not recovered:
        restarts = "several restarts, and" if starts > 1 else "one restart, but"
        return Observation(False, f"{restarts} not steady within {ONE_CRASH_LIMIT_S:g} s", figures={"starts": starts})
    if run.have_ended("ab"):
        ended = run.exit_codes("ab", within_s=0)
        saw = f"the run ends after {starts} starts: agents exit {ended}"
        return Observation(False, saw, figures={"starts": starts})
    took_s = max(report.at_s for report in run.round("ab", "stepped", killed_s)) - killed_s
    well, ended = run.finish("ab")
    return Observation(
        well and starts == 1,
        f"{starts} restart{'s' * (starts != 1)}, all step together after {{took}}; {ended}",
        took_s,
        {"starts": starts},
    )


def _steady(run: Run, since_s: float) -> bool:
    """Return whether all four step together, and none has started for a while."""
    steps = run.round("ab", "stepped", since_s)
    latest_s = max((report.at_s for report in run.stage.heard("started", since_s)), default=0.0)
    return bool(steps) and time.monotonic() - max(latest_s, *(s.at_s for s in steps)) > ONE_CRASH_SETTLE_S


def _starts(run: Run, since_s: float) -> int:
    """Return the number of starts of the rank that was started most often."""
    ranks = [report.rank for report in run.stage.heard("started", since_s)]
    return max((ranks.count(rank) for rank in set(ranks)), default=0)


def restart_count(stage: Stage, launcher: Launcher) -> Observation:
    """Restart count that the workers of the new round read after the crash of a worker.

    The other node's worker does not notice by itself, because it is between two collectives or loads data.
    """
    run = Run(stage, launcher, nnodes="2")
    workers = run.form("ab")
    killed_s = kill(next(worker.pid for worker in workers if worker.node == "b"))
    stage.expect(lambda: run.round("ab", "started", killed_s), "a new round")
    counts = {report.node: report.restart_count for report in run.round("ab", "started", killed_s)}
    well, ended = run.finish("ab")
    return Observation(
        well and len(set(counts.values())) == 1,
        f"`TORCHELASTIC_RESTART_COUNT` is {counts['a']} on node a and {counts['b']} on node b, where the crash was; "
        f"{ended}",
        figures={"counts": counts},
    )


def logs(stage: Stage, launcher: Launcher) -> Observation:
    """A node arrives, and the workers of the first one start again. Their earlier output should still exist."""
    folder = os.path.join(stage.folder, "logs")
    run = Run(stage, launcher, "--log-dir", folder, "-r", "3", nnodes="1:2")
    (first,) = run.form("a")
    stage.expect(lambda: _is_written(folder, first.pid), "what the first worker said, in its log")
    began_s = time.monotonic()
    run.start("b")
    stage.expect(lambda: run.round("ab", "started", began_s), "a round of both nodes")
    second = [report for report in run.round("ab", "started", began_s) if report.node == "a"]
    well, ended = run.finish("ab")
    kept = {"first": _is_written(folder, first.pid), "second": all(_is_written(folder, w.pid) for w in second)}
    said = ", ".join(f"the {name} worker's log is {'there' if is_kept else 'gone'}" for name, is_kept in kept.items())
    return Observation(well and all(kept.values()), f"on node a {said}; {ended}", figures={"kept": kept})


def _is_written(folder: str, pid: int) -> bool:
    """Return whether a log file has this worker's output."""
    paths = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    return any(f"worker {pid} speaks" in _read(path) for path in paths)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


DEAD_NODE_LIMIT_S = 30.0
"""Ten times what torchrun's keep-alives take here."""


def dead_node(stage: Stage, launcher: Launcher) -> Observation:
    """A node is lost while the other one's workers do not need it."""
    run = Run(stage, launcher, nnodes="1:2")
    run.form("ab")
    lost_s = run.lose("b")
    if not (new := run.goes_on("a", lost_s, DEAD_NODE_LIMIT_S)):
        return Observation(False, f"unnoticed for {DEAD_NODE_LIMIT_S:g} s: node a's worker stays in a world of 2")
    took_s = new[0].at_s - lost_s
    well, ended = run.finish("a")
    return Observation(well, f"node a continues alone after {{took}}; {ended}", took_s)


ORPHANS_LIMIT_S = 3.0
ORPHANS_NPROC = 2


def orphans(stage: Stage, launcher: Launcher) -> Observation:
    """An agent is killed with SIGKILL, as by the kernel for lack of memory. Its workers should not outlive it."""
    agent = alone(stage, launcher, nproc=ORPHANS_NPROC)
    stage.expect(lambda: len(stage.heard("started")) == ORPHANS_NPROC, "workers")
    pids = [report.pid for report in stage.heard("started")]
    killed_s = kill(agent.pid)
    gone = stage.until(lambda: not any(map(is_running, pids)), ORPHANS_LIMIT_S)
    took_s = time.monotonic() - killed_s
    if gone:
        return Observation(True, "both workers are gone after {took}", took_s)
    left = sum(map(is_running, pids))
    return Observation(
        False, f"{left} of {ORPHANS_NPROC} workers still run after {ORPHANS_LIMIT_S:g} s", figures={"left": left}
    )


STANDING_BY = {True: "standing by", False: "to the redundancy list"}
"""Line of a spare node's agent: ours, and torchrun's."""


def spare(stage: Stage, launcher: Launcher) -> Observation:
    """A spare node waits while a run of two succeeds."""
    run = Run(stage, launcher, nnodes="2")
    run.form("ab")
    run.start("c")
    spare = run.agents["c"]
    stage.expect(lambda: STANDING_BY[launcher is OURS] in spare.text(), "a spare")
    well, ended = run.finish("abc")
    errors = re.findall(r"(\w+Error): ", spare.text())
    return Observation(well, "; ".join([ended, *(f"the spare after {error}" for error in errors[-1:])]))


ASKED_S = 2
RIGHT_S = 10.0
DEAF_LIMIT_S = 60.0
DEAF_NPROC = 2


def shutdown_timeout(stage: Stage, launcher: Launcher) -> Observation:
    """A restart in which the other worker ignores SIGTERM, with `--shutdown-timeout 2`."""
    alone(
        stage, launcher, "--shutdown-timeout", str(ASKED_S), "--max-restarts", "1", nproc=DEAF_NPROC, kind="deaf",
        environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(ASKED_S)},
    )  # fmt: skip
    stage.expect(lambda: len(stage.heard("started")) == DEAF_NPROC, "workers")
    killed_s = kill(stage.heard("started")[0].pid)
    if not stage.until(lambda: len(stage.heard("started", killed_s)) == DEAF_NPROC, DEAF_LIMIT_S):
        return Observation(False, f"no new workers within {DEAF_LIMIT_S:g} s")
    took_s = max(report.at_s for report in stage.heard("started", killed_s)) - killed_s
    return Observation(took_s < RIGHT_S, f"new workers after {{took}}, {ASKED_S} s asked for", took_s)


LAST_CALL_LAST_CALL_S = 5
"""Last call of both launchers. Their default is 30 s."""
LAST_CALL_LIMIT_S = 60.0


def last_call(stage: Stage, launcher: Launcher) -> Observation:
    """A worker crashes in a run that has room for more nodes than it has. There is no new node to wait for."""
    run = Run(stage, launcher, nnodes="1:2", last_call_s=LAST_CALL_LAST_CALL_S)
    (worker,) = run.form("a")
    killed_s = kill(worker.pid)
    if not (new := run.goes_on("a", killed_s, LAST_CALL_LIMIT_S)):
        return Observation(False, f"no new worker within {LAST_CALL_LIMIT_S:g} s")
    took_s = new[0].at_s - killed_s
    well, ended = run.finish("a")
    return Observation(
        well and took_s < LAST_CALL_LAST_CALL_S / 2,
        f"a new worker after {{took}}, with a last call of {LAST_CALL_LAST_CALL_S:g} s; {ended}",
        took_s,
    )


LEAVE_SOONEST_S = KEEP_ALIVE_S * (KEEP_ALIVES - 1)
"""Seconds before which no keep-alive of the leaving node can have expired: an earlier reaction comes from its message.
"""
LEAVE_LIMIT_S = 60.0


def leave(stage: Stage, launcher: Launcher) -> Observation:
    """One of two agents is told to leave with SIGTERM, like a node that is about to be preempted.

    The other node's worker notices at once, in its collective, so only the launcher delays it.
    """
    run = Run(stage, launcher, nnodes="1:2", kind="together")
    run.form("ab", "stepped")
    told_s = time.monotonic()
    os.kill(run.agents["b"].pid, signal.SIGTERM)
    if not (reports := run.goes_on("a", told_s, LEAVE_LIMIT_S)):
        return Observation(False, f"node a does not continue alone within {LEAVE_LIMIT_S:g} s")
    (new,) = reports
    took_s = new.at_s - told_s
    well, ended = run.finish("a")
    return Observation(
        well and took_s < LEAVE_SOONEST_S,
        f"node a continues alone after {{took}}, restart count {new.restart_count}; {ended}",
        took_s,
        {"restart_count": new.restart_count},
    )


RANK_0_LIMIT_S = 60.0


def rank_0(stage: Stage, launcher: Launcher) -> Observation:
    """The node of rank 0 is lost, in a run that may continue with one node.

    Under torchrun that is also the store's host.
    """
    run = Run(stage, launcher, nnodes="1:2")
    workers = run.form("ab")
    lost = next(worker.node for worker in workers if worker.group_rank == 0)
    other = "b" if lost == "a" else "a"
    lost_s = run.lose(lost)
    if not (new := run.goes_on(other, lost_s, RANK_0_LIMIT_S)):
        ended = run.exit_codes(other, within_s=0)
        return Observation(False, f"the other node's agent does not continue: exit code {ended}")
    well, ended = run.finish(other)
    took_s = new[0].at_s - lost_s
    return Observation(well, f"the other node continues after {{took}}; {ended}", took_s)


TOKEN = "the-secret-of-the-run"
NOT_A_MESSAGE = pickle.dumps({"run_id": RUN_ID})
READ_KEY = """
import datetime, sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=20))
state = store.get(sys.argv[3])
store.set("written by a stranger", "harmless")
sys.stdout.buffer.write(state)
"""
"""A client of torch's own store and the name of the run suffice. The state itself is not changed."""


def intruder(stage: Stage, launcher: Launcher) -> Observation:
    """A stranger reaches the run's port, without credentials."""
    token_file = os.path.join(stage.folder, "token")
    with open(token_file, "w", encoding="ascii") as file:
        file.write(TOKEN)
    run = Run(stage, launcher, nnodes="2", token_file=token_file)
    run.form("ab")
    kept_out, saw = (_ask_without_token if launcher is OURS else _read_state)(run.port)
    well, ended = run.finish("ab")
    undisturbed = len(stage.heard("started")) == 2
    return Observation(kept_out and well and undisturbed, f"{saw}; the run is {'un' * undisturbed}disturbed, {ended}")


def _read_state(port: int) -> tuple[bool, str]:
    """Read the rendezvous state, and parse the pickle without loading it."""
    key = f"torch.rendezvous.{RUN_ID}"
    command = [sys.executable, "-c", READ_KEY, ADDRESS, str(port), key]
    reader = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=START_S, check=False)
    if reader.returncode != 0:
        return True, f"a stranger could not read `{key}`"
    classes = _classes_of_pickle(reader.stdout)
    held = f"a pickle of `{', '.join(classes)}`" if classes else "no pickle"
    return False, f"a stranger read `{key}`, {held}, and wrote a key of its own"


def _classes_of_pickle(value: bytes) -> list[str]:
    """Return the torch classes that a pickle would load, empty if it is not a pickle."""
    try:
        operations = list(pickletools.genops(base64.b64decode(value, validate=True)))
    except (binascii.Error, ValueError):
        return []
    texts = [argument for _, argument, _ in operations if isinstance(argument, str)]
    return sorted({name for module, name in pairwise(texts) if module.startswith("torch.distributed.elastic.")})


def _ask_without_token(port: int) -> tuple[bool, str]:
    """Ask, and try to join, without the token. Then send a pickle with it."""
    with_token = {"Authorization": f"Bearer {TOKEN}"}
    tried = {
        "status without a token": (_answer(port, "GET", paths.STATUS, b"", {}), 401),
        "a join without one": (_answer(port, "POST", paths.JOIN, NOT_A_MESSAGE, {}), 401),
        "a pickle with one": (_answer(port, "POST", paths.JOIN, NOT_A_MESSAGE, with_token), 400),
    }
    saw = "a stranger is refused: " + ", ".join(f"{name} {status}" for name, (status, _) in tried.items())
    return all(status == expected for status, expected in tried.values()), saw


def _answer(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """Return the status of the server's answer."""
    line = http.client.HTTPConnection(ADDRESS, port, timeout=START_S)
    try:
        line.request(method, path, body=body, headers={"Content-Type": paths.MEDIA_TYPE, **headers})
        return line.getresponse().status
    finally:
        line.close()


def pet_standalone(stage: Stage, launcher: Launcher) -> Observation:
    """Flags from the environment, as operators on Kubernetes set them: `PET_STANDALONE=true`."""
    stage.finish()
    agent = alone(stage, launcher, standalone=(), environment={"PET_STANDALONE": "true"})
    stage.until(lambda: agent.exit_code is not None, START_S)
    says = [line.strip() for line in agent.text().splitlines() if "Error: " in line or "error: " in line]
    worked = agent.exit_code == 0 and bool(stage.reports)
    ended = f"exit code {codes([agent.exit_code])}"
    return Observation(worked, "; ".join([ended, *says[-1:]] if not worked else [ended, "the worker ran"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A defect. `title`: what goes wrong under torchrun.

    `is_slow`: torchrun takes more than half a minute. `repeat`: how often to run it, more than once if results vary.
    `depends_on_store`: torchrun also runs with its default, where each round reuses the store of the first one;
    otherwise only without that.
    """

    observe: Callable[[Stage, Launcher], Observation]
    title: str
    is_slow: bool = False
    repeat: int = 1
    depends_on_store: bool = False

    @property
    def name(self) -> str:
        """Name of the scenario on the command line."""
        return self.observe.__name__.replace("_", "-")

    def launchers(self) -> list[Launcher]:
        return [*([AS_IT_COMES] if self.depends_on_store else []), WITH_OWN_STORE, OURS]


LONG = {"is_slow": True, "depends_on_store": True}
CRASH = "One crash of a worker costs several restarts, or the run never recovers"
STATE = "The rendezvous state is a pickle in a store that anybody may read and write"

DEFECTS = (
    Defect(observe=scale_up, title="A node that arrives ends the run", **LONG),
    Defect(observe=replacement, title="A replacement for a lost node ends the run", **LONG),
    Defect(observe=one_crash, title=CRASH, repeat=5, **LONG),
    Defect(observe=restart_count, title="The restart count differs between the nodes of one round"),
    Defect(observe=logs, title="A membership change deletes the logs of the round before"),
    Defect(observe=dead_node, title="A dead node goes unnoticed while the other workers are idle", is_slow=True),
    Defect(observe=orphans, title="Workers outlive their agent"),
    Defect(observe=spare, title="A spare node fails when the run succeeds", repeat=3),
    Defect(observe=shutdown_timeout, title="`--shutdown-timeout` is ignored on a restart", is_slow=True),
    Defect(observe=last_call, title="Every restart below the maximum waits the whole last call again"),
    Defect(observe=leave, title="A node that leaves is missed only when its keep-alives run out"),
    Defect(observe=rank_0, title="Losing the node of rank 0 ends the run"),
    Defect(observe=intruder, title=STATE),
    Defect(observe=pet_standalone, title="`PET_STANDALONE=true` is a ValueError"),
)
