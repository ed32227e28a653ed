"""Explanation of a run, as a paragraph: its state, what it waits for, what failed first, and what it cost."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rdzv_protocol.states import ENDS
from rdzv_protocol.text import age, printable

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.views import lines, state
from rdzvctl.views.next_steps import MOST_NAMED, listed, next_steps, with_flags
from rdzvctl.views.state import NO_CORDONS, Servers


class Why(NamedTuple):
    """Explanation of a run: a paragraph, the evidence behind it, and what a person can do now."""

    text: str
    evidence: list[str]
    next: list[str]


def why(run: Fields, servers: Servers, opened: str = "", earlier: str = "") -> Why:
    """Return the explanation of a run: its state, what it waits for, what failed first, and what to do next.

    `opened`: why the forming round was opened, if known. `earlier`: sentence about the failure of the attempt before.
    If the servers can decide nothing now, nothing else helps.
    """
    unhealthy_reason, program = servers.unhealthy_reason, servers.program
    is_told = run["phase"] == "unhealthy" or (unhealthy_reason and state.is_only_undecided(run))
    wrong = "" if is_told else state.trouble(run)
    sentences = [unhealthy_reason, _sentence(wrong), _state(run), *_lost(run)]
    sentences += [words.explanation.reason_of_restart(opened)] if opened else []
    sentences += _ending(run)
    sentences += [each for each in _absent(run, program) if not wrong or each[:1].lower() + each[1:-1] not in wrong]
    sentences += [*_failures(run), *_restarts(run), earlier]
    steps = [words.steps.MEND_SERVER] if unhealthy_reason else next_steps(run, servers)
    failure = run["first_failure"]
    return Why(
        printable(" ".join(filter(None, sentences))),
        lines.evidence(failure) if failure else [],
        [printable(with_flags(step, program)) for step in steps],
    )


def troubles(runs: Iterable[Fields], servers: Servers, *, most: int | None = None) -> list[str]:
    """Return a line for each run that needs a person, with the next step; then how many runs need none, if any.

    `most`: number of such active runs that have a line; None for all.
    """
    known = state.in_order(runs)
    active = [run for run in known if not state.is_over(run)]
    needy = [run for run in active if state.wrong(run)]
    shown = [_needs(run, state.wrong(run), next_steps(run, servers), servers.program) for run in needy[:most]]
    if most is not None and (left := needy[most:]):
        shown.append(with_flags(words.runs.more_runs(len(left), state.phases(left)), servers.program))
    failed = failures(known, servers)
    stopped = sum(run["is_stopped"] for run in known)
    numbers = {str(phase): sum(run["phase"] == phase for run in known) for phase in ENDS}
    numbers |= {"failed": numbers["failed"] - stopped - len(failed), "stopped": stopped}
    ended = {phase: number for phase, number in numbers.items() if number}
    well = len(active) - len(needy)
    rest = words.runs.needs_nothing(well, ended, named_failed=len(failed), are_all_well=not needy)
    return [*shown, *failed, *filter(None, [rest])]


def failures(runs: Iterable[Fields], servers: Servers) -> list[str]:
    """Return a line for each of the latest runs that have failed recently, with the next step."""
    shown, servers = list[str](), servers._replace(cordons=NO_CORDONS)
    for run in failed_runs(runs):
        what = words.runs.ended(run["phase"], run["phase_age_s"], run["reason"])
        shown.append(_needs(run, what, next_steps(run, servers), servers.program))
    return shown


def failed_runs(runs: Iterable[Fields]) -> list[Fields]:
    """Return the latest runs that have failed recently."""
    return state.failed_recently(runs)[:MOST_NAMED]


def _needs(run: Fields, what: str, steps: Sequence[str], program: str) -> str:
    """Return the line about a run that needs a person, with its first step."""
    return printable(words.runs.needs_person(run["run_id"], what, with_flags(next(iter(steps), ""), program)))


def time_line(run: Fields) -> str:
    """Return the sentence about what the run's time went into; empty if it has lasted no time."""
    spent = Fields(run["time_s"])
    parts = ("starting", "checkpointing", "detecting", "lost")
    if spent["training"] is None:  # the workers have reported no progress
        spent["running"] -= sum(spent[part] for part in parts)
    names = ("running" if spent["training"] is None else "training", *parts, "forming", "restarting", "waiting")
    shown = {name: spent[name] for name in names if age(spent[name]) != age(0.0)}
    return words.explanation.time_went_into(shown, spent["ettr"]) if shown else ""


def restarts_line(run: Fields) -> str:
    """Return the sentence about what the run's restarts took; empty if there were none."""
    from rdzv_protocol.words.run import restarts_took

    costs = run["restart_costs"]
    if not costs["restarts"] or costs["cost"] is None:
        return ""
    steps = costs["kept_steps"], costs["repeated_steps"]
    return _sentence(restarts_took(costs["restarts"], costs["followed"], costs["cost"], *steps))


def _sentence(text: str) -> str:
    """Return the text as a sentence; empty if it is."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _state(run: Fields) -> str:
    told = words.explanation
    name, phase, since_s = told.run(words.runs.named(run["run_id"], run["attempt"])), run["phase"], state.since_s(run)
    match phase:
        case "forming" | "restarting":
            return told.forms(name, phase, since_s, run["round"], state.reason(run))
        case "finishing" if run["finishing"] and run["unheard_s"] is None and not state.is_troubled(run):
            found = run["finishing"]
            return told.finishing(name, found["finished"], since_s, found["still_running"])
        case "running" | "finishing":
            return told.has_been(name, phase, since_s, state.reason(run))
        case "unhealthy":
            return told.is_unhealthy(name, run["reason"])
    return told.has_ended(name, phase, since_s, run["age_s"] - since_s, state.reason(run))


def _ending(run: Fields) -> list[str]:
    """Return sentences about the announced end of the round, as far as the state's reason does not contain them."""
    told, ending = words.explanation, run["ending"]
    if not ending:
        return []
    nodes = ending["leaving"]
    ends = [told.round_ends(ending["ends_in_s"], ending["reason"])] if run["phase"] == "finishing" else []
    return [*ends, *([told.leave_together(listed(nodes))] if len(nodes) > 1 else [])]


def _lost(run: Fields) -> list[str]:
    """Return sentences about the nodes that an ended run had lost; empty for a run that has not ended."""
    lost = state.gone(run) if state.is_over(run) else []
    return [words.explanation.gone(each["node_id"], each["age_s"], each["cause"]) for each in lost[:MOST_NAMED]]


def _absent(run: Fields, program: str) -> list[str]:
    """Return sentences about nodes that are disconnected, slow, badly connected, cordoned or standing by."""
    told, nodes = words.explanation, run["nodes"]
    silent = [(node, left_s) for node in nodes if (left_s := node["lost_in_s"]) is not None]
    sentences = [
        told.disconnected(node["node_id"], node["lease_age_s"], left_s) for node, left_s in silent[:MOST_NAMED]
    ]
    if len(silent) > MOST_NAMED:
        sentences.append(told.more_disconnected(len(silent) - MOST_NAMED))
    remarks = [remark for node in nodes for remark in node["remarks"].values()]
    sentences += [*map(_sentence, remarks[:MOST_NAMED]), *_left_out(remarks, "remark", f"{program} nodes")]
    links = run["broken_links"]
    sentences += [told.network_test_failed(link["nodes"], link["problem"]) for link in links[:MOST_NAMED]]
    sentences += _left_out(links, "broken link", f"{program} status --json")
    kept_out = [node for node in nodes if node["state"] == "running" and node["cordon"]]
    sentences += [told.gets_no_seat(node["node_id"], state.cordon(node["cordon"])) for node in kept_out[:MOST_NAMED]]
    sentences += _left_out(kept_out, "such node", f"{program} nodes")
    if standbys := [node["node_id"] for node in nodes if node["state"] == "standby"]:
        sentences.append(told.standing_by(listed(standbys)))
    return sentences


def _left_out(things: Sequence[Any], noun: str, command: str) -> list[str]:
    """Return the sentence about the things beyond `MOST_NAMED`; empty if there are none."""
    left = len(things) - MOST_NAMED
    return [words.explanation.more(left, noun, command)] if left > 0 else []


def _failures(run: Fields) -> list[str]:
    """Return sentences about the first failure and the last one, unless the state's reason contains them."""
    told, sentences = words.explanation, list[str]()
    if first := run["first_failure"]:
        what, ago_s, round_ = lines.of_failure(first), first["age_s"], first["round"]
        is_told = _is_reason(run, round_, what)
        sentences.append(told.that_failed_first(ago_s, round_) if is_told else told.failed_first(what, ago_s, round_))
        sentences.append(_sentence(first["hint"].rstrip(".")))
    if last := run["last_failure"]:
        what = lines.of_failure(last)
        shown = "" if _is_reason(run, last["round"], what) else told.failed_last(what, last["age_s"], last["round"])
        sentences.append(told.rounds_have_failed(run["failed_rounds"], shown))
    return sentences


def _is_reason(run: Fields, round_: int, what: str) -> bool:
    """Return whether this failure, of this round, is the reason of the run's end: the same may fail in each round."""
    ended = run["end_failure"]
    return bool(ended) and ended["round"] == round_ and printable(run["reason"]).startswith(what)


def _restarts(run: Fields) -> list[str]:
    """Return sentences about the run's restarts, and about what the latest one took; empty if there are none."""
    from rdzv_protocol.words.run import last_restart_took

    causes = {cause.replace("_", " "): times for cause, times in run["restarts"].items() if times}
    if not causes:
        return []
    own = {cause: (budget["used"], budget["most"]) for cause, budget in run["own_budgets"].items()}
    sentences = [words.explanation.has_restarted(causes, run["restarts_used"], run["max_restarts"], own)]
    if known := [restart for restart in run["history"] if restart["cost"]]:  # no cost from an older server
        sentences.append(_sentence(last_restart_took(known[-1]["round"], known[-1]["cost"])))
    return sentences
