"""State of runs and servers: what is wrong with a run, whether it needs a person, and which run comes first."""

import re
from collections.abc import Iterable, Mapping, Sequence
from time import localtime, strftime
from typing import Any, NamedTuple

from rdzv_protocol.states import ENDS, HEALTH
from rdzv_protocol.text import printable

from rdzvctl import words
from rdzvctl.answers import Fields

RECENT_S = 86_400.0
"""Most seconds since a run has failed recently."""

# Of one run.


def is_over(run: Fields) -> bool:
    return run["phase"] in ENDS


def is_troubled(run: Fields) -> bool:
    """Return whether a person should look at the run, which has not ended."""
    return bool(run["health"]) and run["health"]["is_trouble"]


def is_undecided(run: Fields) -> bool:
    """Return whether the run's server can decide nothing now."""
    return bool(run["health"]) and run["health"]["state"] == "undecided"


def is_only_undecided(run: Fields) -> bool:
    """Return whether nothing else is known to be wrong with such a run."""
    return is_undecided(run) and not run["health"]["others"]


def has_failed(run: Fields) -> bool:
    return bool(run["phase"] == "failed" and not run["is_stopped"])


def lacks_nodes(run: Fields) -> bool:
    """Return whether the round that forms needs other nodes than those that stop their workers."""
    return bool(run["missing"]) and run["missing"]["more_nodes"] > len(run["missing"]["stopping"])


def names_lack(run: Fields) -> bool:
    """Return whether the run's trouble itself says which nodes the run waits for."""
    return bool(run["health"]) and run["health"]["state"] == "lacks_nodes"


def failed_recently(runs: Iterable[Fields]) -> list[Fields]:
    """Return the runs that have failed within the last day, the latest first."""
    failed = [run for run in runs if has_failed(run) and run["phase_age_s"] <= RECENT_S]
    return sorted(failed, key=lambda run: run["phase_age_s"])


def gone(run: Fields) -> list[Fields]:
    """Return the departures of participants that a forming round lacks, or that an ended run had lost in its last
    round with workers."""
    if not is_over(run):
        return list(run["missing"]["departures"]) if run["missing"] else []
    there = {node["node_id"] for node in run["nodes"]}
    return [
        each
        for each in run["departures"]
        if each["round"] == run["workers_round"] and each["group_rank"] is not None and each["node_id"] not in there
    ]


def since_s(run: Fields) -> float:
    """Return the seconds since the run's phase began; while it finishes, since its last worker finished."""
    finishing = run["finishing"] if run["phase"] == "finishing" else None
    return float(finishing["age_s"] if finishing else run["phase_age_s"])


def health(run: Fields) -> str:
    """Return the state of health; `-` if it is unknown."""
    return "-" if run["health"] is None else run["health"]["state"].replace("_", " ")


def trouble(run: Fields, *, names_health: bool = True) -> str:
    """Return what is wrong with a run that needs a person, and for how long; empty if it needs none."""
    if not is_troubled(run):
        return ""
    found = run["health"]
    others = [state.replace("_", " ") for state in found["others"] if state != "below_size"]
    return words.runs.trouble(health(run) if names_health else "", found["age_s"], found["sentence"], others)


def reason(run: Fields) -> str:
    """Return the reason of the run's state, without what its trouble already says."""
    told, hang = str(run["reason"]), run["hang"]
    for remark in (run["health"] and run["health"]["sentence"], hang and hang["withheld"]):
        if remark and is_troubled(run):
            told = told.replace(f"; {remark}", "").removeprefix(f"{remark}; ")
    return told


def without_times(value: Any) -> Any:
    """Return a status without ages, remaining times and countdowns, so that it stays the same while nothing happens."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if not key.endswith(("_s", "time"))}
    if isinstance(value, list):
        return [without_times(each) for each in value]
    return re.sub(r" in \d+(\.\d+)? s$", "", value) if isinstance(value, str) else value


def wrong(run: Fields) -> str:
    """Return the trouble of a run that has not ended; empty if it has none.

    If the run lacks nodes, the text begins with what it waits for: it stands still until then.
    """
    found = trouble(run)
    if not lacks_nodes(run) or names_lack(run):
        return found
    return "; ".join(filter(None, [words.runs.state(run["phase"], since_s(run), reason(run)), found]))


# Of all runs.


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
        """Return whether the run matches."""
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
        found = run["health"]
        return not self.health or (bool(found) and self.health in [found["state"], *found["others"]])


def in_order(runs: Iterable[Fields]) -> list[Fields]:
    """Return active runs first, and among them troubled ones, the worst first; then the youngest."""
    return sorted(runs, key=_order)


def first_to_see(runs: Iterable[Fields]) -> list[Fields]:
    """Return the runs for a screen that may be too short for all: troubled runs first, then failed runs, then the
    rest."""
    return sorted(runs, key=lambda run: (not is_troubled(run), not has_failed(run), _order(run)))


def _order(run: Fields) -> tuple[bool, int, float]:
    return is_over(run), _severity(run), run["phase_age_s"] if is_over(run) else run["age_s"]


def _severity(run: Fields) -> int:
    if not is_troubled(run):
        return len(HEALTH)
    state = run["health"]["state"]
    return HEALTH.index(state) if state in HEALTH else 0  # a newer server may have states of its own


def phases(runs: Iterable[Fields]) -> str:
    """Return the numbers of runs by phase, as text, the largest first. Troubled runs are counted by their health, and
    those that an operator has stopped are not counted as failed.
    """
    numbers: dict[str, int] = {}
    for run in runs:
        name = health(run) if is_troubled(run) else "stopped" if run["is_stopped"] else str(run["phase"])
        numbers[name] = numbers.get(name, 0) + 1
    return words.runs.by_phase(dict(sorted(numbers.items(), key=lambda each: -each[1])))


# Of servers.


def unhealthy_reason(servers: Iterable[Fields]) -> str:
    """Return sentences that say which servers should decide but cannot, and why; empty if there are none."""
    stuck = [server for server in servers if not server["ready"] and (server["leads"] or _lacks_leader(server))]
    told = (words.servers.cannot_decide(each["address"], each["unhealthy_reason"] or "") for each in stuck)
    return printable(" ".join(told))


def _lacks_leader(server: Fields) -> bool:
    return any(shard["leader"] is None for shard in server["shards"])


def advertised(servers: Iterable[Fields]) -> list[str]:
    """Return the addresses under which other machines reach the servers of a cluster; empty for a single server."""
    known = [
        each for server in servers for each in [*(shard["leader"] for shard in server["shards"]), *server["peers"]]
    ]
    return [each for each in dict.fromkeys(filter(None, known)) if not is_of_this_machine(each)]


def endpoint_of_agents(given: Sequence[str], servers: Sequence[Fields]) -> str:
    """Return the servers' addresses for the `--endpoint` of an agent on any machine; a placeholder if they are unknown.

    `given`: addresses at which the servers answer here. If these are names of this machine only, the servers know
    better ones. A cluster has the addresses that it advertises, and a single server those that its agents have used.
    """
    if not all(map(is_of_this_machine, given)):
        return ",".join(given)
    if known := advertised(servers):
        return ",".join(known)
    used = [server["agents_endpoint"] for server in servers if server["agents_endpoint"]]
    away = [each for each in used if not is_of_this_machine(each)]
    if away or used:  # if all agents have used a name of this machine, they run on it
        return away[0] if away else ",".join(given)
    return words.servers.SOME_ENDPOINT


def is_of_this_machine(at: str) -> bool:
    """Return whether HOST:PORT names whichever machine it is used on."""
    return at.startswith(("localhost:", "127.", "[::1]:"))


NO_CORDONS: Mapping[str, Fields] = {}
PROGRAM = "rdzvctl"


class Servers(NamedTuple):
    """Servers that a command asks, as views of their runs show them."""

    endpoint: str
    """Their addresses, as in the agents' `--endpoint`."""
    cordons: Mapping[str, Fields] = NO_CORDONS
    """Their cordons by node."""
    unhealthy_reason: str = ""
    """Why they can decide nothing now; empty if they can."""
    program: str = PROGRAM
    """`rdzvctl`, with flags for the commands that a person copies."""


def cordons(servers: Iterable[Fields]) -> dict[str, Fields]:
    """Return the servers' cordons by node."""
    return {cordon["node_id"]: cordon for server in servers for cordon in server["cordons"]}


def cordon(found: Fields) -> str:
    """Return the cordon as text: its author, its time, and its reason. The server's own cordon is an exclusion."""
    since, until = (_minute(found.get(name)) for name in ("since", "until"))
    return words.servers.cordon(found["by"], until, found["reason"], excluded=found["excluded"], since=since)


def _minute(at: float | None) -> str:
    return strftime("%Y-%m-%d %H:%M", localtime(at)) if at else ""
