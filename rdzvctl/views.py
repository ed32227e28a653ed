"""Views of a status and of events for people: tables, and sentences with the server's own words. Pure functions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from time import localtime, strftime
from typing import Any, NamedTuple

from rdzv_protocol.text import count, printable

from rdzvctl.answers import Fields, departures_of_missing, lost_in_s

STYLES = {
    "unhealthy": "red",
    "hung": "red",
    "unreachable": "red",
    "silent": "red",
    "looping": "red",
    "overdue": "yellow",
    "stalled": "yellow",
    "slow": "yellow",
    "last": "yellow",
    "running": "green",
    "succeeded": "green",
    "finishing": "green",
    "forming": "yellow",
    "restarting": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "standby": "cyan",
    "cordoned": "cyan",
    "excluded": "cyan",
    "draining": "yellow",
    "failed": "red",
    "gone": "red",
    "disconnected": "red",
}
"""Colours of states. The names of the states are always shown, too."""
HEALTH = (
    "unhealthy", "hung", "unreachable", "silent", "overdue", "looping", "stalled", "slow", "last_restart_spent",
    "below_size", "ok",
)  # fmt: skip
"""States of health, the worst first."""
PHASES = ("unhealthy", "forming", "running", "finishing", "restarting", "succeeded", "failed")
ENDS = ("succeeded", "failed")
MOST_NAMED = 4
"""Most nodes, or runs, that a sentence names."""
PROGRAM = "rdzvctl"
NO_CORDONS: Mapping[str, Fields] = {}
EVIDENCE_LINES = 12
"""Number of last lines of a failure's evidence that are shown."""


class Table(NamedTuple):
    """Rows of texts below their headings. A cell that begins with a word in `STYLES` may have its colour."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def age(seconds: float | None) -> str:
    """Return a duration in at most two units: 12s, 3m20s, 2h5m, 4d3h; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    for size, unit, smaller, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{below}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def without_times(value: Any) -> Any:
    """Return a status without ages, remaining times and countdowns, so that it stays the same while nothing happens."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if not key.endswith(("_s", "time"))}
    if isinstance(value, list):
        return [without_times(each) for each in value]
    return re.sub(r" in \d+(\.\d+)? s$", "", value) if isinstance(value, str) else value


def is_over(run: Fields) -> bool:
    return run["phase"] in ENDS


# Tables.


def server_lines(servers: Iterable[Fields]) -> list[str]:
    """Return a line for each server: address, whether it can decide, its leader; then a line for each cordoned node."""
    known = [*servers]
    kept_out = [f"node {printable(node_id)}: {_cordon(cordon)}" for node_id, cordon in sorted(cordons(known).items())]
    return [_server(server) for server in known] + kept_out


def cordons(servers: Iterable[Fields]) -> dict[str, Fields]:
    """Return the servers' cordons by node."""
    return {cordon["node_id"]: cordon for server in servers for cordon in server["cordons"]}


def _server(server: Fields) -> str:
    state = "ready" if server["ready"] else f"not ready: {printable(server['unhealthy_reason'] or '')}"
    led = [str(shard["shard"]) for shard in server["shards"] if shard["leader"] == server["address"]]
    if len(server["shards"]) > 1:
        state += f"; leads shards {', '.join(led)}" if led else "; leads no shard"
    elif server["shards"]:
        follows = f"follows {printable(server['leader'])}" if server["leader"] else "no server leads"
        state += "; leads" if server["leads"] else f"; {follows}"
    version, up = printable(server["version"]), age(server["uptime_s"])
    return f"rdzv-server {version} at {printable(server['address'])}: {state}; up {up}"


NAMELESS = "the server remembers only the latest names"


class Wanted(NamedTuple):
    """Filter for all runs; an empty field matches any run."""

    pattern: str = ""
    """Pattern of the run's id, as in a shell: `eval-*`."""
    node: str = ""
    """Pattern of the name of one of its nodes."""
    phase: str = ""
    health: str = ""
    """State of health, or `trouble` for each run that needs a person."""

    def __bool__(self) -> bool:
        return any(self)

    def covers(self, run: Fields) -> bool:
        """Whether the run matches."""
        from fnmatch import fnmatchcase

        return (
            (not self.pattern or fnmatchcase(run["run_id"], self.pattern))
            and self.phase in ("", run["phase"])
            and (not self.node or any(fnmatchcase(node["node_id"], self.node) for node in run["nodes"]))
            and self._has_health(run)
        )

    def _has_health(self, run: Fields) -> bool:
        if self.health == "trouble":
            return is_troubled(run)
        return not self.health or (bool(run["health"]) and self.health in _states(run["health"]))


def _states(health: Fields) -> list[str]:
    return [health["state"], *health["others"]]


def first_to_see(runs: Iterable[Fields]) -> list[Fields]:
    """Return the runs for a screen that may be too short for all: troubled runs first, then failed runs, then the
    rest."""
    return sorted(runs, key=lambda run: (not is_troubled(run), not _has_failed(run), _order(run)))


def _has_failed(run: Fields) -> bool:
    return bool(run["phase"] == "failed" and not run["is_stopped"])


def phases(runs: Iterable[Fields]) -> str:
    """Return the numbers of runs by phase, as text: 180 running, 6 failed."""
    numbers: dict[str, int] = {}
    for run in runs:
        numbers[run["phase"]] = numbers.get(run["phase"], 0) + 1
    return ", ".join(f"{number} {phase}" for phase, number in sorted(numbers.items(), key=lambda each: -each[1]))


def runs_table(runs: Iterable[Fields]) -> Table:
    """Return a table with a row for each run: active runs first, and among them troubled ones, then the youngest."""
    return rows_of_runs(sorted(runs, key=_order))


def rows_of_runs(runs: Iterable[Fields]) -> Table:
    """Return a table of runs in this order."""
    headings = ("RUN", "PHASE", "HEALTH", "SINCE", "ROUND", "NODES", "RESTARTS", "REASON")
    return Table(headings, [_run_row(run) for run in runs])


def _order(run: Fields) -> tuple[bool, int, float]:
    """Return the sort key of runs: runs that need a person come first, the worst state of health before others."""
    return is_over(run), _severity(run), run["phase_age_s"] if is_over(run) else run["age_s"]


def _severity(run: Fields) -> int:
    if not is_troubled(run):
        return len(HEALTH)
    state = run["health"]["state"]
    return HEALTH.index(state) if state in HEALTH else 0  # a newer server may have states of its own


def is_troubled(run: Fields) -> bool:
    """Whether a person should look at the run, which has not ended."""
    return bool(run["health"]) and run["health"]["is_trouble"]


def _health_word(run: Fields) -> str:
    return "-" if run["health"] is None else run["health"]["state"].replace("_", " ")


def _run_row(run: Fields) -> tuple[str, ...]:
    name = printable(run["run_id"]) + (f" (attempt {run['attempt']})" if run["attempt"] > 1 else "")
    restarts = f"{run['restart_count']}/{run['max_restarts']}"
    free = sum(run["restarts"].values()) - run["restart_count"]
    return (
        name, run["phase"], _health_word(run), age(run["phase_age_s"]), str(run["round"]), _node_counts(run),
        restarts + (f"+{free}" if free else ""), _health(run).removeprefix(f"{_health_word(run)} ") or _reason(run),
    )  # fmt: skip


def _node_counts(run: Fields) -> str:
    """Return the number of participating nodes, and of wanted nodes: 3 of 2:4; with standbys 3+1 of 2:4."""
    low, high = run["min_nodes"], run["max_nodes"]
    spare = f"+{run['standbys']}" if run["standbys"] else ""
    return f"{run['present']}{spare} of {low if low == high else f'{low}:{high}'}"


def nodes_table(run: Fields) -> Table:
    """Return a table of nodes by group rank, then standbys, then participants that are gone from this round."""
    rows = [_node_row(run, node) for node in run["nodes"]]
    rows += [
        (
            printable(gone["node_id"]), "gone", _rank(gone["group_rank"]), "-", age(gone["age_s"]), "-",
            printable(gone["cause"]),
        )
        for gone in departures_of_missing(run)
    ]  # fmt: skip
    if run["missing"] and (more := run["missing"]["more_gone"]):
        rows.append((f"and {count(more, 'more node')}", "gone", *"----", NAMELESS))
    return Table(("NODE", "STATE", "GROUP RANK", "RANKS", "HEARD", "ADDRESS", "NOTE"), rows)


def _node_row(run: Fields, node: Fields) -> tuple[str, ...]:
    cordon = node["cordon"]
    state = "excluded" if node["state"] == "cordoned" and cordon and cordon["excluded"] else node["state"]
    notes = [count(node["failures"], "failure")] if node["failures"] else []
    if (left_s := lost_in_s(run, node)) is not None:
        notes.append(f"disconnected: lost within {age(left_s)}")
    if node["drain_left_s"] is not None:
        notes.append(f"its workers have {age(node['drain_left_s'])} left")
    named = f"node {node['node_id']} is "  # the row names the node
    notes += [printable(remark.removeprefix(named)) for remark in node["remarks"].values()]
    if cordon:
        notes.append(_cordon(cordon))
    ranks = node["ranks"]
    shown = f"{ranks[0]}-{ranks[1]}" if ranks and ranks[0] != ranks[1] else str(ranks[0]) if ranks else "-"
    return (
        printable(node["node_id"]), state, _rank(node["group_rank"]), shown, age(node["lease_age_s"]),
        printable(node["addr"]), "; ".join(notes),
    )  # fmt: skip


def _cordon(cordon: Fields) -> str:
    """Return the cordon as text: its author, its end, and its reason. The server's own cordon is an exclusion."""
    who = "excluded" if cordon["excluded"] else f"cordoned by {printable(cordon['by'])}"
    until = f" until {strftime('%Y-%m-%d %H:%M', localtime(cordon['until']))}" if cordon["until"] else ""
    reason = f": {printable(cordon['reason'])}" if cordon["reason"] else ""
    return f"{who}{until}{reason}"


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def restarts_table(run: Fields) -> Table:
    """Return a table of the run's restarts, the latest one first."""
    rows = [
        (str(restart["round"]), age(restart["age_s"]), restart["cause"].replace("_", " "), age(restart["took_s"]),
         "charged" if restart["charged"] else "free", printable(restart["reason"]))
        for restart in reversed(run["history"])
    ]  # fmt: skip
    return Table(("ROUND", "AGO", "CAUSE", "TOOK", "COST", "REASON"), rows)


# Sentences.


def time_line(run: Fields) -> str:
    """Return the sentence about what the run's time went into; empty if the server does not count it."""
    spent = dict(run["time_s"])
    parts = ("starting", "checkpointing", "detecting", "lost")
    if spent.get("training") is None:  # the workers have reported no progress
        spent["running"] = spent.get("running", 0.0) - sum(spent.get(part, 0.0) for part in parts)
    names = ("running" if spent.get("training") is None else "training", *parts, "forming", "restarting", "waiting")
    shown = [f"{age(spent[name])} {name}" for name in names if spent.get(name)]
    ettr = f" ETTR {spent['ettr']:.3f}." if spent.get("ettr") is not None else ""
    return f"Its time: {', '.join(shown)}.{ettr}" if shown else ""


def restarts_line(run: Fields) -> str:
    """Return the sentence about what the run's restarts took; empty if there were none, or with an older server."""
    from rdzv_protocol.words.run import restarts_took

    costs = run["restart_costs"]
    if not costs or not costs["restarts"] or costs["cost"] is None:
        return ""
    steps = costs["kept_steps"], costs["repeated_steps"]
    return f"{restarts_took(costs['restarts'], costs['followed'], costs['cost'], *steps)}."


def one_line(run: Fields) -> str:
    """Return the run's state in one line."""
    line = f"run {printable(run['run_id'])}: {run['phase']} for {age(run['phase_age_s'])}: {_reason(run)}"
    return f"{line}; {_health(run)}" if is_troubled(run) and run["phase"] != "unhealthy" else line


def _health(run: Fields) -> str:
    """Return what is wrong with a run that needs a person, and for how long; empty if it needs none."""
    if not is_troubled(run):
        return ""
    found = run["health"]
    also = "".join(f"; also {state.replace('_', ' ')}" for state in found["others"] if state != "below_size")
    return f"{_health_word(run)} for {age(found['age_s'])}: {printable(found['sentence'])}{also}"


def _reason(run: Fields) -> str:
    """Return the run's reason without what its health already says."""
    reason, hang = printable(run["reason"]), run["hang"]
    for remark in (run["health"] and run["health"]["sentence"], hang and hang["withheld"]):
        if remark and is_troubled(run):
            reason = reason.replace(f"; {printable(remark)}", "")
    return reason


def troubles(
    runs: Iterable[Fields], endpoint: str, *, cordons: Mapping[str, Fields] = NO_CORDONS, program: str = PROGRAM
) -> list[str]:
    """Return a line for each run that needs a person, with the next step; then how many runs need none.

    The other arguments are those of `why`.
    """
    known = sorted(runs, key=_order)
    needy = [run for run in known if not is_over(run) and (is_troubled(run) or _lacks_nodes(run))]
    lines = []
    for run in needy:
        what = _health(run) or f"{run['phase']} for {age(run['phase_age_s'])}: {printable(run['reason'])}"
        step = with_flags(next(iter(_next(run, None, endpoint, cordons)), ""), program)
        lines.append(f"{printable(run['run_id'])}: {what}. Next: {step}")
    well = sum(not is_over(run) for run in known) - len(needy)
    ended = {phase: sum(run["phase"] == phase for run in known) for phase in ENDS}
    counts = [f"{count(well, 'run')} {'needs' if well == 1 else 'need'} nothing" if needy else "No run needs anything"]
    counts += [f"{number} {phase}" for phase, number in ended.items() if number]
    return [*lines, f"{'; '.join(counts)}."]


def _lacks_nodes(run: Fields) -> bool:
    return bool(run["missing"]) and run["missing"]["more_nodes"] > len(run["missing"]["stopping"])


def sentence_of(failure: Fields) -> str:
    """Return the failure in one line, as in every log and on every console."""
    from rdzv_protocol.words.run import worker_failed

    fields = failure["node_id"], failure["rank"], failure["cause"], failure["error"]
    return worker_failed(*fields, singled_out=failure["singled_out"])


def evidence(failure: Fields) -> list[str]:
    """Return the last lines that the failed worker left: its traceback, else its stderr."""
    lines = failure["traceback"] or failure["stderr_tail"]
    return [printable(line) for text in lines for line in text.splitlines()][-EVIDENCE_LINES:]


def event_line(event: Fields) -> str:
    """Return the event in one line, in the words of the server's log."""
    at = strftime("%Y-%m-%d %H:%M:%S", localtime(event["at"])) if event["at"] else "-"
    attempt = f"attempt {event['attempt']}, " if event["attempt"] > 1 else ""
    return f"{at} #{event['number']} {attempt}round {event['round']}: {_event_sentence(event)}"


def _event_sentence(event: Fields) -> str:
    from rdzv_protocol.codec import convert
    from rdzv_protocol.errors import MalformedMessage
    from rdzv_protocol.events import RunEvent

    try:
        return convert(RunEvent, event).sentence
    except MalformedMessage:  # a newer server has kinds that this program does not know
        by = f" (by {event['by']})" if event["by"] else ""
        return printable(f"{event['kind']}: {event['reason']}{by}")


class Worker(NamedTuple):
    """Place of a worker and of its output."""

    run_id: str
    rank: int
    local_rank: int
    node_id: str
    addr: str
    path: str
    """Folder of its log files on that node; empty if there are none."""


def worker(run: Fields, rank: int) -> Worker | None:
    """Return the worker of this rank in the last round that had workers; None if no present node had it."""
    for node in run["nodes"]:
        if node["ranks"] and node["ranks"][0] <= rank <= node["ranks"][1]:
            local_rank, folder = rank - node["ranks"][0], node["log_dir"]
            path = f"{folder}/attempt_{run['workers_round'] - 1}/{local_rank}" if folder else ""
            return Worker(run["run_id"], rank, local_rank, node["node_id"], node["addr"], path)
    return None


def whereabouts(place: Worker) -> str:
    return printable(
        f"rank {place.rank} of run {place.run_id}: local rank {place.local_rank} on node {place.node_id} ({place.addr})"
    )


def log_files(place: Worker, log: Fields | None) -> str:
    """Return the sentence about where the worker's output is: the file that the agent has read, else the announced
    folder."""
    if log:
        return printable(f"{log['stream']} of round {log['round']}, from the file {log['path']} on that node")
    if place.path:
        return printable(f"log files on that node: {place.path}/")
    return "no log files: the worker writes to its agent's console; node-agent -t 3 --log-dir DIR writes files, too"


def evidence_files(found: Fields) -> str:
    """Return the sentence about where the files of an examination of workers are."""
    if not found["folder"]:
        return "the agents wrote no files"
    return printable(f"files with all threads: {found['folder']} on node {found['node_id']}; each node keeps its own")


def log_lines(text: str) -> list[str]:
    """Return lines of a log as they would look on a screen, printable.

    Of a progress bar, only the last state is left.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return [printable(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


class Why(NamedTuple):
    """Account of a run: a paragraph, the evidence behind it, and what a person can do now."""

    text: str
    evidence: list[str]
    next: list[str]


def why(
    run: Fields,
    endpoint: str,
    opened: str = "",
    unhealthy_reason: str = "",
    *,
    cordons: Mapping[str, Fields] = NO_CORDONS,
    program: str = PROGRAM,
) -> Why:
    """Return the account of a run: its state and since when, what it waits for, what failed first, and what to do next.

    `endpoint`: the servers, as in the agents' `--endpoint`. `opened`: why the forming round was opened, if known.
    `unhealthy_reason`: why the run's server can decide nothing now; then nothing else helps. `cordons`: the servers'
    cordons by node. `program`: `rdzvctl`, with flags for the commands that a person copies.
    """
    cause = [f"Reason of this restart: {printable(opened)}."] if opened else []
    wrong = "" if run["phase"] == "unhealthy" else _health(run)
    first = [unhealthy_reason, f"{wrong[:1].upper()}{wrong[1:]}." if wrong else ""]
    others = [each for each in _absent(run, program) if not wrong or each[:1].lower() + each[1:-1] not in wrong]
    sentences = [*filter(None, first), _state(run), *cause, *others]
    failure = run["first_failure"]
    if failure:
        what = sentence_of(failure)
        when = f"{age(failure['age_s'])} ago in round {failure['round']}"
        is_told = printable(run["reason"]).startswith(what)
        sentences.append(f"That is the first failure, {when}." if is_told else f"First failure, {when}: {what}.")
        if failure["hint"]:
            hint = printable(failure["hint"]).rstrip(".")
            sentences.append(f"{hint[:1].upper()}{hint[1:]}.")
    if last := run["last_failure"]:
        what = sentence_of(last)
        when = f"the last failure, {age(last['age_s'])} ago in round {last['round']}"
        suffix = "" if printable(run["reason"]).startswith(what) else f"; {when}: {what}"
        sentences.append(f"{run['failed_rounds']} rounds have failed{suffix}.")
    if restarts := sum(run["restarts"].values()):
        sentences.append(f"It has restarted {count(restarts, 'time')}: {_restarts(run)}.")
        sentences += _last_restart(run)
    steps = [_MEND_SERVER] if unhealthy_reason else _next(run, failure, endpoint, cordons)
    steps = [with_flags(step, program) for step in steps]
    return Why(" ".join(sentences), evidence(failure) if failure else [], steps)


def with_flags(text: str, program: str) -> str:
    """Return the text, in which each command of `rdzvctl` begins with `program`: `rdzvctl` with flags.

    A command follows a colon or a sentence, also in the server's own words.
    """
    return re.sub(rf"(?<=[:.] ){PROGRAM} (?=[a-z])", lambda _: f"{program} ", text)


def _last_restart(run: Fields) -> list[str]:
    """Return the sentence about what the latest restart took; none if it is unknown, or with an older server."""
    from rdzv_protocol.words.run import last_restart_took

    known = [restart for restart in run["history"] if restart["cost"]]
    if not known:
        return []
    said = last_restart_took(known[-1]["round"], known[-1]["cost"])
    return [f"{said[:1].upper()}{said[1:]}."]


_MEND_SERVER = "Repair the server first: until it can decide, nothing else helps. Workers keep running."


def unhealthy_reason(servers: Iterable[Fields]) -> str:
    """Return sentences that say which servers should decide but cannot, and why; empty if there are none."""
    stuck = [server for server in servers if not server["ready"] and (server["leads"] or _lacks_leader(server))]
    return " ".join(
        f"rdzv-server at {printable(server['address'])} cannot decide anything now: "
        f"{printable(server['unhealthy_reason'] or '')}."
        for server in stuck
    )


def _lacks_leader(server: Fields) -> bool:
    return any(shard["leader"] is None for shard in server["shards"])


def _state(run: Fields) -> str:
    name = f"Run {printable(run['run_id'])}" + (f" (attempt {run['attempt']})" if run["attempt"] > 1 else "")
    since, reason = age(run["phase_age_s"]), _reason(run)
    match run["phase"]:
        case "forming" | "restarting":
            return f"{name} has been {run['phase']} for {since}, in round {run['round']}: {reason}."
        case "finishing" if run["finishing"] and run["unheard_s"] is None and not is_troubled(run):
            return f"{name} has been running for {since}: {_finishing(run['finishing'])}."
        case "running" | "finishing":
            return f"{name} has been {run['phase']} for {since}: {reason}."
        case "unhealthy":
            return f"{name} is unhealthy: {printable(run['reason'])}."
    lasted = age(run["age_s"] - run["phase_age_s"])
    return f"{name} {run['phase']} {since} ago, after {lasted}: {reason}."


def _finishing(found: Fields) -> str:
    finished, still_running = printable(found["finished"]), printable(found["still_running"])
    return f"{finished} finished {age(found['age_s'])} ago; still running: {still_running}"


def _absent(run: Fields, program: str) -> list[str]:
    """Return sentences about nodes that are disconnected, slow, badly connected, cordoned or standing by."""
    silent = [(node, left_s) for node in run["nodes"] if (left_s := lost_in_s(run, node)) is not None]
    sentences = [
        f"Node {printable(node['node_id'])} is disconnected, last heard {age(node['lease_age_s'])} ago; unless it "
        f"returns, it is lost within {age(left_s)}."
        for node, left_s in silent[:MOST_NAMED]
    ]
    if len(silent) > MOST_NAMED:
        left = len(silent) - MOST_NAMED
        sentences.append(f"{count(left, 'more node')} {'is' if left == 1 else 'are'} disconnected, too.")
    remarks = [f"{printable(remark)}." for node in run["nodes"] for remark in node["remarks"].values()]
    sentences += [sentence[0].upper() + sentence[1:] for sentence in remarks[:MOST_NAMED]]
    sentences += _left_out(remarks, "remark", f"{program} nodes")
    sentences += [
        f"The network test failed between {' and '.join(map(printable, link['nodes']))}: {printable(link['problem'])}."
        for link in run["broken_links"][:MOST_NAMED]
    ] + _left_out(run["broken_links"], "broken link", f"{program} status --json")
    kept_out = [node for node in run["nodes"] if node["state"] == "running" and node["cordon"]]
    sentences += [
        f"Node {printable(node['node_id'])} is running, but gets no seat in a new round: {_cordon(node['cordon'])}."
        for node in kept_out[:MOST_NAMED]
    ] + _left_out(kept_out, "such node", f"{program} nodes")
    if standbys := _listed([node["node_id"] for node in run["nodes"] if node["state"] == "standby"]):
        sentences.append(f"Standing by: {standbys}.")
    return sentences


def _left_out(things: Sequence[Any], noun: str, command: str) -> list[str]:
    """Return the sentence about the things beyond `MOST_NAMED`; empty if there are none."""
    left = len(things) - MOST_NAMED
    return (
        [f"There {'is' if left == 1 else 'are'} {count(left, f'more {noun}')}: {command} shows all."]
        if left > 0
        else []
    )


def _restarts(run: Fields) -> str:
    causes = [f"{times} by {cause.replace('_', ' ')}" for cause, times in run["restarts"].items() if times]
    return f"{', '.join(causes)}; {run['restart_count']} of {run['max_restarts']} charged"


def _next(run: Fields, failure: Fields | None, endpoint: str, cordons: Mapping[str, Fields]) -> list[str]:
    """Return the steps that a person can take now, each with its command, but without `rdzvctl`'s own flags."""
    run_id = quoted(run["run_id"])
    steps = [*map(printable, run["health"]["next"])] if is_troubled(run) else []
    if steps and not _lacks_nodes(run):
        return steps
    match run["phase"]:
        case "succeeded":
            return ["Nothing: the run has ended."]
        case "failed" if run["is_stopped"]:
            return ["Nothing: an operator stopped the run. To begin a new attempt, start the agents again."]
        case "failed":
            if failure and failure["singled_out"]:
                steps.append(f"Read the worker's output: rdzvctl logs {run_id} {failure['rank']}")
            return [*steps, "Fix the cause, then start the agents again: that begins a new attempt."]
        case "forming" | "restarting":
            return steps + _next_of_forming(run, run_id, endpoint, cordons)
    return _next_of_running(run, run_id, endpoint, cordons)


def _next_of_running(run: Fields, run_id: str, endpoint: str, cordons: Mapping[str, Fields]) -> list[str]:
    """Return the ways to fill free seats: with standbys, with cordoned nodes, or with new nodes."""
    running, there = run["present"], run["present"] + run["standbys"]
    if run["phase"] != "running" or running >= (largest := run["largest_size"]):
        if run["phase"] == "running" and run["progress"] is None:
            return [untold(run_id)]
        return ["Nothing: it runs."]
    steps = [f"Nothing has to be done: the run uses {running} of at most {count(largest)}."]
    if run["free_seats"] and run["settings"]["scale_up"] != "immediate":
        steps.append(f"Give the free seats to standby nodes: rdzvctl admit {run_id}")
    kept_out = [node for node in run["nodes"] if node["state"] == "cordoned"]
    present = {node["node_id"] for node in run["nodes"]} if cordons else set()
    away = {gone["node_id"]: None for gone in run["departures"]} if cordons else {}
    fit = [_uncordon(node) for node in kept_out]
    fit += [_uncordon_absent(cordons[name]) for name in away if name in cordons and name not in present]
    steps += fit[: max(0, min(largest - there, MOST_NAMED))]
    there += len(kept_out)
    some, settings = run["next_size"] or largest, run["settings"]
    if there < some < largest and (settings["legal_sizes"] or settings["node_unit"] > 1):  # else each node helps
        steps.append(f"To run on {some}, start {count(some - there, 'more node')}: {_start(run_id, endpoint)}")
    if there < largest:
        steps.append(f"To run on all, start {count(largest - there, 'more node')}: {_start(run_id, endpoint)}")
    return steps


def untold(run_id: str) -> str:
    """Return the step for a run about whose workers the server knows nothing. `run_id`: quoted for a shell."""
    told = "Nothing that the server knows of. The workers have reported no progress in this round"
    return f"{told}; to see what they do: rdzvctl stacks {run_id}"


class _Gone(NamedTuple):
    """Nodes that are gone, which a forming round lacks, by what a person can do about them."""

    lost: list[str]
    signalled: list[Fields]
    """Departures of agents that left because of a signal."""
    others: list[str]
    """Steps for cordoned nodes, and for nodes that left for another reason."""


def _gone(run: Fields, missing: Fields, cordons: Mapping[str, Fields]) -> _Gone:
    found = _Gone([], [], [])
    departures = {gone["node_id"]: gone for gone in departures_of_missing(run)}
    for name in missing["gone"]:
        departure = departures.get(name)
        if name in cordons:
            found.others.append(_uncordon_absent(cordons[name]))
        elif departure is None or not departure["left"]:
            found.lost.append(name)
        elif departure["cause"].startswith("SIG"):
            found.signalled.append(departure)
        else:
            why = printable(departure["cause"])
            found.others.append(f"If node {printable(name)} is fit (it left: {why}), start its agent again.")
    return found


def _next_of_forming(run: Fields, run_id: str, endpoint: str, cordons: Mapping[str, Fields]) -> list[str]:
    """Return the steps for a forming round.

    Each cordoned node that has joined could be a missing one.
    """
    missing = run["missing"] or Fields(more_nodes=0, stopping=[], gone=[])
    stopping, gone = _listed(missing["stopping"]), _gone(run, missing, cordons)
    steps = [f"Check the lost nodes: {_listed(gone.lost, missing['more_gone'])}."] if gone.lost else []
    if stopping:
        steps.append(f"Wait for {stopping} to stop its workers, for --shutdown-timeout at most.")
    if (more := missing["more_nodes"] - len(missing["stopping"])) > 0:
        nameless = 0 if gone.lost else missing["more_gone"]
        steps += _start_again(gone.signalled, nameless)
        fit = [_uncordon(node) for node in run["nodes"] if node["state"] == "cordoned"] + gone.others
        to_start = more - (len(gone.signalled) + nameless if gone.signalled else 0)
        steps += fit[: max(0, min(to_start, MOST_NAMED))]
        to_start -= len(fit)
        start = f"Start {count(to_start, 'more node')}" if to_start > 0 else f"Or start {count(more, 'more node')}"
        steps.append(f"{start}: {_start(run_id, endpoint)}")
    return steps or ["Nothing: the round will start by itself."]


def _start_again(signalled: Sequence[Fields], nameless: int) -> list[str]:
    """Return the step for nodes whose agents left because of a signal; empty if there are none."""
    if not signalled:
        return []
    causes = ", ".join(sorted({printable(gone["cause"]) for gone in signalled}))
    names = _listed([gone["node_id"] for gone in signalled], nameless)
    if len(signalled) + nameless == 1:
        return [f"Start the agent of node {names} again (it left: {causes})."]
    return [f"Start the agents of nodes {names} again (they left: {causes})."]


def _start(run_id: str, endpoint: str) -> str:
    return f"node-agent --endpoint {endpoint} --run-id {run_id} ... SCRIPT"


def _uncordon(node: Fields) -> str:
    name, why_not = node["node_id"], f" ({_cordon(node['cordon'])})" if node["cordon"] else ""
    return f"If node {printable(name)} is fit{why_not}: rdzvctl uncordon {quoted(name)}"


def _uncordon_absent(cordon: Fields) -> str:
    name = cordon["node_id"]
    step = "uncordon it and start its agent again"
    return f"If node {printable(name)} is fit ({_cordon(cordon)}), {step}: rdzvctl uncordon {quoted(name)}"


def _listed(names: Sequence[str], nameless: int = 0) -> str:
    """Return the first few names and how many more there are, including the `nameless` ones; empty if there are
    none."""
    left = len(names[MOST_NAMED:]) + nameless
    more = f" and {left} more" if left else ""
    return ", ".join(map(printable, names[:MOST_NAMED])) + more


def quoted(text: str) -> str:
    """Return the text quoted for a shell; unprintable characters become spaces."""
    from shlex import quote

    return quote(printable(text))
