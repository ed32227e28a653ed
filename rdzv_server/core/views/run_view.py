"""The view model of a run: what people see of its state, with one function for each fact.

Status, watched documents, metrics and plain pages are made from it, and through them the live page and `rdzvctl`. They
decide how a fact is written, not what it is. Times are in seconds by the run's clock.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from rdzv_protocol.shell import quoted
from rdzv_protocol.states import Phase
from rdzv_protocol.text import NextStep

from rdzv_server.core.kernel import admission, completion, finishing, legal_sizes, notices
from rdzv_server.core.kernel.run import HISTORY, Agent, AgentState, Departure, FailureRecord, Run, Stage
from rdzv_server.core.policies import POLICIES, restart_cost, time_ledger
from rdzv_server.words import completion as completion_words
from rdzv_server.words import health as health_words
from rdzv_server.words import runs

NodeState = Literal["waiting", "standby", "cordoned", "running", "stopping", "draining", "succeeded", "failed"]
_WAITING = AgentState.WAITING
_WORDS: dict[AgentState, NodeState] = {state: state.value for state in AgentState}
"""Words for the states of agents. A table, since looking up a member of an enumeration, or its value, is slow."""
SHORT_ID, HIDDEN = 12, 8
"""Length up to which ids are shown whole, and number of final characters that are hidden in longer ones."""


class Outlook(NamedTuple):
    """Sentence about a run without a countdown, with the event that will happen by itself, and when."""

    reason: str
    ending: str | None = None
    """Event at `at`: "starts", "gives_up" or "ends"; None if no event is expected."""
    at: float | None = None


class Missing(NamedTuple):
    """Nodes that a forming round waits for."""

    more_nodes: int
    """Number of nodes that the round lacks to reach its minimum."""
    stopping: list[str]
    """Nodes that still stop their workers."""
    vacated: list[Departure]
    """Departures of participants of the last round whose nodes are not back."""
    more_gone: int
    """Number of other nodes that are gone, whose names the run does not remember."""
    refused: Mapping[str, str]
    """Nodes whose agents may not join, each with the reason."""


class Ending(NamedTuple):
    """Announced end of the running round, before which the workers save their work."""

    reason: str
    """Which node leaves or arrives, and why."""
    at: float
    leaving: list[str]
    """Nodes that then leave."""
    more_nodes: int
    """Number of further nodes that the next round needs for its minimum."""


NODE_REMARKS = tuple(policy.node_remarks for policy in POLICIES if "node_remarks" in vars(policy))
"""Hooks of the policies with remarks about nodes. Other policies are left out, since a status has many nodes."""


def is_apart(run: Run) -> bool:
    """Return whether the run has not ended, but the server decides nothing about it after an error: see `set_apart`."""
    return bool(run.set_apart) and not run.stage.is_end


def phase(run: Run) -> Phase:
    """Return the stage of the run for people, with three more words.

    A run that forms again is `restarting`, a run with some finished workers is `finishing`, and a run that is set apart
    is `unhealthy`. A run whose end is not written is still `running`, or still `forming` before its first round.
    """
    if is_apart(run):
        return "unhealthy"
    if run.stage.is_end and not run.has_ended:
        return "running" if run.membership else "forming"
    if run.stage is Stage.FORMING and run.membership:
        return "restarting"
    if finishing.has_begun(run):
        return "finishing"
    return run.stage.value


def reason(run: Run, now: float) -> str:
    """Return the sentence about the run's current state."""
    if run.stage is Stage.FORMING and not is_apart(run):
        return completion.wait(run, now).sentence
    if run.stage is Stage.RUNNING and not is_apart(run):
        return _running(run, now, is_timed=True)
    return outlook(run, now).reason


def outlook(run: Run, now: float) -> Outlook:
    """Return a sentence about the run that stays the same while nothing happens, and the event that comes next."""
    if is_apart(run):
        return Outlook(run.set_apart)
    if run.stage is Stage.FORMING:
        wait = completion.wait(run, now)
        return Outlook(wait.reason, wait.ending, completion.deadline(run))
    if run.stage is Stage.RUNNING:
        sentence, soon = _running(run, now), notices.pending(run)
        at = run.scale_up_at if soon is None else soon.until
        return Outlook(sentence) if at is None else Outlook(sentence, "ends", at)
    return Outlook(run.end_reason if run.has_ended else runs.ends(run.end_reason))


def _running(run: Run, now: float, *, is_timed: bool = False) -> str:
    """Return the sentence about the running round. `is_timed`: whether it says in how many seconds the round ends."""
    ends_soon, soon = "", notices.pending(run)
    if run.notice_since is not None:
        left_s = max(0.0, soon.until - now) if soon and is_timed else None
        ends_soon = completion_words.ends_soon(soon.reason if soon else "", left_s)
    return "; ".join([completion.running_reason(run, ends_soon), *run_remarks(run, now)])


def run_remarks(run: Run, now: float) -> list[str]:
    """Return the policies' phrases about the running round."""
    return [remark for policy in POLICIES if (remark := policy.run_remark(run, now))]


def ending(run: Run) -> Ending | None:
    """Return the announced end of the running round; None if none is announced."""
    soon = notices.pending(run)
    if run.notice_since is None or soon is None or is_apart(run):
        return None
    leaving = list(dict.fromkeys(run.agents[agent_id].node_id for agent_id in run.leaving))
    return Ending(soon.reason, soon.until, leaving, admission.lacks(run))


def waits_for_agents(run: Run) -> bool:
    """Return whether no agent of the running round is heard, or none is connected. No node is lost until an agent is
    back.
    """
    if run.stage is not Stage.RUNNING or is_apart(run):
        return False
    return run.unheard_since is not None or (bool(run.leases.renewed_at) and run.leases.is_none_connected)


def lost_at(run: Run, agent_id: str) -> float | None:
    """Return when the agent is lost unless it is heard before; None if the run has ended or decides nothing."""
    return None if is_apart(run) or waits_for_agents(run) else run.leases.lost_at(agent_id)


def workers_round(run: Run) -> int:
    """Return the round of the workers that were started last; 0 if there were none."""
    return run.membership.round if run.membership else 0


def forms_until(run: Run) -> float | None:
    """Return when the forming round starts or is given up; None if no round forms, or if it has no deadline."""
    return completion.deadline(run) if run.stage is Stage.FORMING and not run.set_apart else None


def forming_s(run: Run, now: float) -> float:
    """Return the seconds for which the run has been forming its round; 0 if it forms none."""
    return max(0.0, now - run.stage_since) if run.stage is Stage.FORMING else 0.0


def finishing_s(run: Run, now: float) -> float | None:
    """Return the seconds since a worker last finished while others still run; None if the run is not `finishing`."""
    return None if (at := finishing.finished_at(run)) is None else max(0.0, now - at)


def unheard_s(run: Run, now: float) -> float | None:
    """Return the seconds since an agent of the running round was last heard, if none is heard; None if one is."""
    return None if run.unheard_since is None else now - run.unheard_since


def missing(run: Run) -> Missing | None:
    """Return the nodes that a forming round waits for; None if no round forms, as in a run that is set apart."""
    if run.stage is not Stage.FORMING or run.set_apart:
        return None
    more = max(0, legal_sizes.smallest(run.settings) - len(run.waiting))
    stopping = [agent.node_id for agent in run.stopping.values()]
    return Missing(more, stopping, completion.vacated(run), _more_gone(run), completion.refused(run))


def _more_gone(run: Run) -> int:
    """Return the number of participants of the last round that are gone, beyond those in `run.departures`."""
    if run.membership is None or len(run.departures) < HISTORY:
        return 0
    counted = sum(gone.round == run.membership.round and gone.group_rank is not None for gone in run.departures)
    return max(0, sum(agent_id not in run.agents for agent_id in run.seats) - counted)


def end_failure(run: Run) -> FailureRecord | None:
    """Return the first failure of the round in which a failure ended the run; None if no failure did."""
    return run.first_of_round if run.end_failure else None


def no_progress(run: Run) -> NextStep | None:
    """Return what to do about a running round of a run whose workers report no progress; None if they do."""
    if phase(run) != "running" or time_ledger.present(run) != "running":
        return None
    return health_words.no_progress_reported(quoted(run.run_id))


def restart_sentence(run: Run) -> str:
    """Return the sentence about what the restarts of the run have taken; empty if there were none."""
    counted = restart_cost.total(run)
    return counted.sentence if counted.restarts else ""


def last_failure(run: Run) -> FailureRecord | None:
    """Return the root failure of the last round that failed; None if that is the first failure, or there is none."""
    last = run.first_of_round
    if last is None and run.failures:
        those = [each for each in run.failures if each.round == run.failures[-1].round]
        last = next((each for each in those if not each.failure.consequence), those[0])
    is_first = last is None or run.first_failure is None or last.round == run.first_failure.round
    return None if is_first else last


def failed_rounds(run: Run) -> int:
    """Return the number of rounds that a failure has ended, or is ending."""
    restarts = sum(times for cause, times in run.restarts.items() if cause.is_failure)
    return restarts + (run.first_of_round is not None)


def world_size(run: Run) -> int:
    """Return the number of workers of the running round, or of an ended run's last one; 0 while a round forms."""
    if run.stage is Stage.FORMING or run.membership is None:
        return 0
    return run.membership.world_size


def present(run: Run) -> int:
    """Return the number of nodes of the running round that are there, or that wait for the forming round.

    If the run has ended, its last round counts.
    """
    if run.stage is Stage.FORMING or workers_round(run) != run.round:
        return len(run.waiting)
    return run.survivors if run.membership else 0


def standbys(run: Run) -> int:
    """Return the number of agents that stand by beside a running round."""
    return len(run.waiting) if run.stage is Stage.RUNNING else 0


# Agents.


def agents(run: Run) -> list[Agent]:
    """Return the agents of the run by group rank, then those without a seat."""
    seated = [run.agents[agent_id] for agent_id in run.seats if agent_id in run.agents]
    others = [agent for agent_id, agent in run.agents.items() if agent_id not in run.seats]
    return seated + sorted(others, key=lambda agent: agent.node_id)


def state(run: Run, agent: Agent) -> NodeState:
    """Return the state of an agent for people. When the run has ended, all agents have the run's state."""
    if run.has_ended:
        return "succeeded" if run.stage is Stage.SUCCEEDED else "failed"
    return _shown(run, agent.state)


def states(run: Run) -> Iterator[tuple[NodeState, int]]:
    """Yield each state with its number of agents. More agents do not take longer."""
    return ((_shown(run, state), len(those)) for state, those in run.by_state.items())


def _shown(run: Run, state: AgentState) -> NodeState:
    """Return the state of agents of a run that has not ended: those that wait beside a running round stand by."""
    return "standby" if state is _WAITING and run.stage is Stage.RUNNING else _WORDS[state]


def node_remarks(run: Run, agent_id: str) -> dict[str, str]:
    """Return the policies' sentences about the agent's node.

    The key of each is a word for its state, such as `slow`.
    """
    remarks: dict[str, str] = {}
    for remarks_of in NODE_REMARKS:
        remarks.update(remarks_of(run, agent_id))
    return remarks


def place(agent: Agent) -> str:
    """Return the node's part of the network, such as `spine1.rack7`: its `--topology` before the last dot.

    A place without dots is the part itself, such as a zone. Empty if the agent has told none, or only its number.
    """
    key = agent.join.sort_key
    part = key.rpartition(".")[0] or key
    return "" if part.isdigit() else re.sub(r"0+(?=\d)", "", part)


def short(agent_id: str) -> str:
    """Shorten an agent's id. The rest distinguishes agents, but does not let a reader act as the agent."""
    return agent_id if len(agent_id) <= SHORT_ID else agent_id[:-HIDDEN]
