"""Next steps of a person for a run, each with its command."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rdzv_protocol.shell import quoted

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.views import state
from rdzvctl.views.state import PROGRAM, Servers

MOST_NAMED = 4
"""Most nodes, or runs, that a sentence names."""
RECENTLY_S = 60.0
"""Seconds since the last progress of workers that certainly run."""


def with_flags(text: str, program: str) -> str:
    """Return the text, in which each command of `rdzvctl` begins with `program`: `rdzvctl` with flags.

    A command follows a colon or a sentence, also in the server's own words.
    """
    return re.sub(rf"(?<=[:.] ){PROGRAM} (?=[a-z])", lambda _: f"{program} ", text)


def next_steps(run: Fields, servers: Servers) -> list[str]:
    """Return the steps, without `rdzvctl`'s own flags in their commands."""
    steps = [*run["health"]["next"]] if state.is_troubled(run) else []
    # without these nodes nothing moves, so the steps that bring them come first
    if state.lacks_nodes(run) and not state.is_undecided(run):
        return _of_forming(run, servers) + (_of_other_troubles(run["health"]) if steps else [])
    if steps:
        return steps
    match run["phase"]:
        case "succeeded":
            return [words.steps.ENDED]
        case "failed" if run["is_stopped"]:
            return [words.steps.STOPPED]
        case "failed":
            failure = run["end_failure"] or run["first_failure"]
            if failure and failure["singled_out"]:
                steps.append(_read_output(run, failure))
            return [*steps, *_of_excluded(run, servers.cordons), words.steps.START_AGAIN]
        case "forming" | "restarting":
            return _of_forming(run, servers)
    return _of_running(run, servers)


def _of_other_troubles(health: Fields) -> list[str]:
    """Return the steps about everything but missing nodes, each step once."""
    return list(dict.fromkeys(step for of, each in health["next_of"].items() if of != "lacks_nodes" for step in each))


def _read_output(run: Fields, failure: Fields) -> str:
    from rdzv_protocol.words import run as told

    log_dirs = {node["node_id"]: node["log_dir"] for node in run["nodes"]}
    if log_dirs.get(failure["node_id"]) == "":
        return told.read_console(failure["node_id"])
    return told.read_output(quoted(run["run_id"]), failure["rank"])


def _of_excluded(run: Fields, cordons: Mapping[str, Fields]) -> list[str]:
    """Return the steps for cordoned nodes of an ended run, which would not let them join a new attempt."""
    names = dict.fromkeys(each["node_id"] for each in [*run["nodes"], *run["departures"]])
    return [_uncordon_absent(cordons[name]) for name in names if name in cordons][:MOST_NAMED]


def _of_running(run: Fields, servers: Servers) -> list[str]:
    """Return the ways to fill free seats: with standbys, with cordoned nodes, or with new nodes."""
    if run["ending"]:
        return _of_ending(run["ending"], words.steps.agent(run["run_id"], servers.endpoint))
    run_id, running, there = run["run_id"], run["present"], run["present"] + run["standbys"]
    if run["phase"] != "running" or running >= (largest := run["largest_size"]):
        progress = run["progress"]
        if run["phase"] == "running" and progress is None:
            return [words.steps.untold(run_id)]
        if run["phase"] == "running" and progress["step_s"] is None and progress["age_s"] > RECENTLY_S:
            return [words.steps.told_once(run_id, progress["age_s"])]
        return [words.steps.RUNS]
    steps, cordons = [words.steps.uses(running, largest)], servers.cordons
    if run["free_seats"] and run["settings"]["scale_up"] != "immediate":
        steps.append(words.steps.admit(run_id))
    kept_out = [node for node in run["nodes"] if node["state"] == "cordoned"]
    present = {node["node_id"] for node in run["nodes"]} if cordons else set()
    away = {gone["node_id"]: None for gone in run["departures"]} if cordons else {}
    fit = [_uncordon(node) for node in kept_out]
    fit += [_uncordon_absent(cordons[name]) for name in away if name in cordons and name not in present]
    steps += fit[: max(0, min(largest - there, MOST_NAMED))]
    there += len(kept_out)
    some, settings, agent = run["next_size"] or largest, run["settings"], words.steps.agent(run_id, servers.endpoint)
    if there < some < largest and (settings["legal_sizes"] or settings["node_unit"] > 1):  # else each node helps
        steps.append(words.steps.to_run_on(some, some - there, agent))
    if there < largest:
        steps.append(words.steps.to_run_on_all(largest - there, agent))
    return steps


def _of_ending(ending: Fields, agent: str) -> list[str]:
    """Return the steps while the workers save, because their round ends soon."""
    if ending["more_nodes"]:
        return [words.steps.start_before_end(ending["more_nodes"], ending["ends_in_s"], agent)]
    return [words.steps.ends_by_itself(ending["ends_in_s"])]


class _Gone(NamedTuple):
    """Nodes that are gone, which a forming round lacks, by what a person can do about them."""

    lost: list[str]
    signalled: list[Fields]
    """Departures of agents that left because of a signal."""
    others: list[str]
    """Steps for cordoned nodes, and for nodes that left for another reason."""


def _gone(run: Fields, missing: Fields, cordons: Mapping[str, Fields]) -> _Gone:
    found = _Gone([], [], [])
    departures = {gone["node_id"]: gone for gone in missing["departures"]}
    for name in missing["gone"]:
        departure = departures.get(name)
        if name in cordons:
            found.others.append(_uncordon_absent(cordons[name]))
        elif departure is None or not departure["left"]:
            found.lost.append(name)
        elif departure["cause"].startswith("SIG"):
            found.signalled.append(departure)
        else:
            found.others.append(words.steps.start_if_fit(name, departure["cause"]))
    return found


def _of_forming(run: Fields, servers: Servers) -> list[str]:
    """Return the steps for a forming round.

    Each cordoned node that has joined could be a missing one.
    """
    missing = run["missing"] or Fields(more_nodes=0, stopping=[], gone=[], departures=[], more_gone=0, refused={})
    from rdzv_protocol.words import run as told

    gone, steps = _gone(run, missing, servers.cordons), list[str]()
    if gone.lost:
        steps.append(words.steps.check_lost(listed(gone.lost, missing["more_gone"])))
    if missing["stopping"]:
        steps.append(words.steps.wait_for(listed(missing["stopping"]), len(missing["stopping"])))
    if (more := missing["more_nodes"] - len(missing["stopping"])) > 0:
        nameless = 0 if gone.lost else missing["more_gone"]
        steps += _start_again(gone.signalled, nameless)
        fit = [_uncordon(node) for node in run["nodes"] if node["state"] == "cordoned"] + gone.others
        fit += [told.correct_agent(node_id, why) for node_id, why in missing["refused"].items()]
        to_start = more - (len(gone.signalled) + nameless if gone.signalled else 0)
        steps += fit[: max(0, min(to_start, MOST_NAMED))]
        to_start -= len(fit)
        agent = words.steps.agent(run["run_id"], servers.endpoint)
        steps.append(
            words.steps.start_more(to_start, agent) if to_start > 0 else words.steps.or_start_more(more, agent)
        )
    return steps or [words.steps.STARTS]


def _start_again(signalled: Sequence[Fields], nameless: int) -> list[str]:
    """Return the step for nodes whose agents left because of a signal; empty if there are none."""
    if not signalled:
        return []
    signals = ", ".join(sorted({gone["cause"] for gone in signalled}))
    nodes = listed([gone["node_id"] for gone in signalled], nameless)
    if len(signalled) + nameless == 1:
        return [words.steps.start_agent_again(nodes, signals)]
    return [words.steps.start_agents_again(nodes, signals)]


def _uncordon(node: Fields) -> str:
    return words.steps.uncordon(node["node_id"], state.cordon(node["cordon"]) if node["cordon"] else "")


def _uncordon_absent(cordon: Fields) -> str:
    return words.steps.uncordon_absent(cordon["node_id"], state.cordon(cordon))


def listed(names: Sequence[str], nameless: int = 0) -> str:
    """Return the first few nodes and how many more there are, including the `nameless` ones; empty if there are
    none."""
    return words.nodes.listed(names[:MOST_NAMED], len(names[MOST_NAMED:]) + nameless)
