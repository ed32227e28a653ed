"""Admission to a run: which agents may join, which place a newcomer takes, and which of the joined agents get a seat.

An agent that restarts claims the place of its previous process, by its node id or its `--node-rank`. If the agent in
that place has no connection, the newcomer replaces it at once. If it has one, the server probes it: it loses its place
unless the server hears it soon. An agent that is alive keeps its place. Two live agents with one node id are two nodes,
and the server refuses the node rank to the newcomer. Agents of one node id that join together are all alive: agents of
one machine share its host name unless each has its own `--node-id`.
"""

import re
from collections.abc import Collection, Sequence
from itertools import islice, starmap
from math import inf

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, MalformedMessage, NodeRankTaken, ServerUnavailable, SettingsConflict
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import SCALE_UP_NOTICE_S, RequestedSettings, RunSettings
from rdzv_protocol.text import clip, printable
from rdzv_protocol.timing import HOLDS_PER_LEASE
from rdzv_protocol.words.flags import setting_asked

from rdzv_server.core.events import NodeJoined
from rdzv_server.core.kernel import agent_secrets, legal_sizes
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import Agent, AgentState, Run, Stage, keep_latest
from rdzv_server.words import admission as words

MOST_AGENTS = 100_000
"""Most agents of one run, including those that stand by: as many as a round may have nodes."""
MOST_GRACE_S = 3_600.0
"""Longest `disconnect_grace_s` of a new run, in seconds: an agent with a closed connection takes memory this long."""
MOST_NAMESAKES = 16
"""Most agents of one node id that a newcomer is compared with. An id that more agents share identifies none of them."""
REFUSED_BYTES, MOST_REFUSED = 200, 16
"""Most bytes of the phrase about a refused agent, and most nodes whose agents' refusals are remembered."""
RECENTLY_S = 1.0
"""If the server heard a waiting agent less than this many seconds ago, it is alive: no host restarts that fast."""


_DIGITS = r"\d+"


class Claim(Struct, frozen=True):
    """Consequences of a newcomer's node id and `--node-rank` for the agents that already have them."""

    replaces: tuple[str, ...] = ()
    """Agents whose place the newcomer takes: they have no connection, or the whole run is silent."""
    probes: tuple[str, ...] = ()
    """Agents that may be dead, and that the server asks for a sign of life."""
    is_undecided: bool = False
    """Whether a probed agent has the newcomer's `--node-rank`: then the probe decides whether the newcomer may join."""


_NO_CLAIM = Claim()
_STOPPING = AgentState.STOPPING
_SEATLESS = (AgentState.CORDONED, AgentState.DRAINING)


def settings_of(join: JoinRequest) -> RunSettings:
    """Return the settings of the run that this join creates. Raises `MalformedMessage` if no run can meet them."""
    settings = join.settings.resolve()
    if settings.min_nodes > settings.max_nodes:
        raise MalformedMessage(words.min_above_max(settings.min_nodes, settings.max_nodes))
    if settings.fixed_nodes is not None and settings.fixed_nodes < settings.min_nodes:
        raise MalformedMessage(words.fixed_below_min(settings.fixed_nodes, settings.min_nodes))
    if settings.disconnect_grace_s > MOST_GRACE_S:
        raise MalformedMessage(words.grace_too_long(settings.disconnect_grace_s, MOST_GRACE_S))
    if not legal_sizes.largest(settings):
        raise MalformedMessage(words.no_legal_size(legal_sizes.none_of(settings)))
    return settings


def check_join(machine: Machine, event: NodeJoined, now: float) -> NodeJoined | None:
    """Return the join as a fact, with the agents that it replaces; None if it only proves life or needs a probe.

    Raises the `ProtocolError` that refuses the join.
    """
    run, join = machine.run, event.join
    _check(run, join, machine.agreed)
    if run.stage.is_end:
        return None  # an agent of the run has joined late: its Finish stays valid
    if join.agent_id not in run.agents:
        return _check_newcomer(machine, event, now)
    if _is_rejoining(run, join):
        return replace(event, replaces=(), blameless=(), unheard=()) if event.replaces else event
    return None


def _check_newcomer(machine: Machine, event: NodeJoined, now: float) -> NodeJoined | None:
    run, join = machine.run, event.join
    if join.program != machine.agreed_program:
        check_program(run, join)
    claimed = _claim(run, join, now)
    if claimed.is_undecided:
        return None
    if not (join.explicit_run_id or run.explicit or claimed.replaces or claimed.probes):
        _check_is_wanted(run, join)
    if claimed.replaces == event.replaces:
        return event
    blameless = tuple(filter(run.leases.is_suspect, claimed.replaces))
    unheard = tuple(agent_id for agent_id in claimed.replaces if agent_id in run.leases.unheard)
    return replace(event, replaces=claimed.replaces, blameless=blameless, unheard=unheard)


def note_refused(run: Run, node_id: str, brief: str) -> None:
    """Remember that the forming round lacks a node whose agent may not join, and forget the oldest beyond the limit."""
    if run.stage is Stage.FORMING:
        keep_latest(run.refused, node_id, clip(printable(brief), REFUSED_BYTES), MOST_REFUSED)


def note_join(machine: Machine, event: NodeJoined, now: float) -> None:
    """Renew the lease of an agent that repeats its join, and probe the agents that a newcomer may replace."""
    run, join = machine.run, event.join
    if join.agent_id in run.agents:
        is_copy = not (run.stage.is_end or _is_rejoining(run, join))
        if is_copy and run.leases.counts_copies_of(join.agent_id):
            run.leases.renew(join.agent_id, now)
    elif (join.node_rank is not None or join.node_id in run.node_ids) and not run.stage.is_end:
        probes = _claim(run, join, now).probes
        for agent_id in probes:
            run.leases.probe(agent_id, _answers_until(run, agent_id, now))
        if probes:
            machine.wake([run.agents[agent_id] for agent_id in probes])


def _check(run: Run, join: JoinRequest, agreed: RequestedSettings | None) -> None:
    """Raise the refusal of this join, if there is one. `agreed`: settings that are known to agree with the run's."""
    if agent := run.agents.get(join.agent_id):
        if not agent_secrets.is_same(join.secret, agent.join.secret):
            raise AgentFenced(words.other_secret(agent.agent_id, run.run_id))
        if (join.node_id, join.node_rank) != (agent.node_id, agent.join.node_rank):
            raise MalformedMessage(words.other_node(agent.agent_id, agent.node_id))
        return
    if len(run.agents) >= MOST_AGENTS:
        raise ServerUnavailable(words.run_is_full(run.run_id, MOST_AGENTS))
    if join.agent_id in run.departed_ids or join.after_round > 0:
        raise AgentFenced(words.fenced(join.agent_id, join.node_id, run.run_id))
    if join.settings != agreed and (found := conflicts(run, join)):
        asked = starmap(setting_asked, _asked(run, join).differences(run.settings))
        raise SettingsConflict(words.other_settings(run.run_id, found), brief=words.asks_for_other_settings(asked))


def check_program(run: Run, join: JoinRequest) -> None:
    """Refuse a newcomer with another program than the first agent of its role, if that agent is or last was connected.

    Without this check, two people who use the same run id by accident would take each other's seats. Digits do not
    count, as in `node1.sh`.
    """
    first = run.agents.get(run.command_of) or next(iter(run.agents.values()), None)
    if first is None or join.role != first.join.role:
        return
    ours, theirs = join.program, first.join.program
    if not (ours and theirs) or ours == theirs or re.sub(_DIGITS, "", ours) == re.sub(_DIGITS, "", theirs):
        return
    if run.stage.is_end or run.leases.is_connected(first.agent_id):
        told = words.other_program(run.run_id, theirs, first.node_id, ours, join.node_id)
        raise SettingsConflict(told, brief=words.runs_other_program(ours, theirs))


def check_command(run: Run, join: JoinRequest) -> None:
    """Refuse an agent that came late or stood by, with another command than all agents of its role that have run.

    If only one agent has run and there were seats for more, each node may have a script of its own, such as `node1.sh`.
    """
    ran = [
        agent.join
        for agent in run.agents.values()
        if agent.round and agent.join.role == join.role and agent.join.command
    ]
    if (likeness := _likeness(run, ran, join)) is None:
        return
    first = ran[0]
    if join.program == first.program or len(ran) > 1 or run.settings.max_nodes == 1:
        raise SettingsConflict(words.succeeded_with_another(run.run_id, first.node_id, first.program, likeness))


def _likeness(run: Run, own: Sequence[JoinRequest], join: JoinRequest) -> "words.Likeness | None":
    """Return what a newcomer with another command has in common with the run's own agents; None if it is no other one.

    If the run's own agents differ in something, it proves nothing about the newcomer. If no agent gave a run id, a
    script with another content is another command: many scripts are called `train.py`. So is the same command from
    another folder, but only if several nodes share theirs: each node may have a folder of its own.
    """

    def is_other(ours: str, theirs: set[str]) -> bool:
        return bool(ours) and len(theirs - {""}) == 1 and ours not in theirs

    if is_other(join.command, {each.command for each in own}):
        return "program" if join.program and join.program == own[0].program else "nothing"
    if run.explicit or join.explicit_run_id:
        return None
    has_other_content = is_other(join.content, {each.content for each in own})
    has_other_folder = len(own) > 1 and is_other(join.folder, {each.folder for each in own})
    return "command" if has_other_content or has_other_folder else None


def check_outcome(run: Run, agent_id: str) -> None:
    """Refuse the run's success to an agent that has only stood by, if it has another command."""
    if run.stage is Stage.SUCCEEDED and not run.agents[agent_id].round:
        check_command(run, run.agents[agent_id].join)


def _check_is_wanted(run: Run, join: JoinRequest) -> None:
    """Refuse an agent with another command if no run id was given and no seat is free: it belongs to another run."""
    if len(run.running) < legal_sizes.largest(run.settings):
        return
    own = [run.agents[agent_id].join for agent_id in run.running]
    if likeness := _likeness(run, own, join):
        raise SettingsConflict(words.not_wanted(run.run_id, len(own), join.node_id, join.program, likeness))


def conflicts(run: Run, join: JoinRequest) -> list[str]:
    """Return phrases about settings in which the run differs from the join, except limits that an operator has set."""
    return _asked(run, join).conflicts(run.settings)


def _asked(run: Run, join: JoinRequest) -> RequestedSettings:
    """Return the settings that the agent asks for, without limits that an operator has set for the run."""
    return replace(join.settings, min_nodes=None, max_nodes=None) if run.is_resized else join.settings


def _claim(run: Run, join: JoinRequest, now: float) -> Claim:
    """Return the claim of a newcomer. Raises `NodeRankTaken` if a live agent has its `--node-rank`."""
    namesakes = run.node_ids.get(join.node_id)
    holder = None if join.node_rank is None else run.node_ranks.get(join.node_rank)
    if namesakes is None and holder is None:
        return _NO_CLAIM
    others = dict.fromkeys(islice(namesakes or (), MOST_NAMESAKES))
    if holder is not None:
        others[holder] = None
    absent_since, spared = run.leases.absent_since, run.leases.spared
    is_unheard = run.unheard_since is not None
    gone = [agent_id for agent_id in others if agent_id in absent_since or agent_id in spared or is_unheard]
    replaces = sorted(gone, key=lambda agent_id: absent_since.get(agent_id, -inf))
    connected = (agent_id for agent_id in others if agent_id not in gone)
    probes = tuple(
        agent_id
        for agent_id in connected
        if not run.leases.is_proven(agent_id, now) and (agent_id == holder or not _has_just_joined(run, agent_id, now))
    )
    if join.node_rank is not None and holder is not None and holder not in replaces and holder not in probes:
        node_id, last = run.agents[holder].node_id, run.settings.max_nodes - 1
        is_same = node_id == join.node_id
        told = words.node_rank_taken(join.node_rank, run.run_id, node_id, last, is_same_node=is_same)
        raise NodeRankTaken(told, brief=words.claims_taken_rank(join.node_rank, node_id))
    return Claim(tuple(replaces), probes, holder in probes)


def _has_just_joined(run: Run, agent_id: str, now: float) -> bool:
    leases = run.leases
    return (
        run.agents[agent_id].has_joined
        and agent_id not in leases.uncertain
        and now < leases.renewed_at[agent_id] + RECENTLY_S
    )


def _answers_until(run: Run, agent_id: str, now: float) -> float:
    """Return the time by which a live agent answers if it is asked for a sign of life now.

    An agent that is woken polls at once. While it stops its workers, it polls twice in each lease.
    """
    poll_s = run.settings.lease_s / HOLDS_PER_LEASE
    return now + (1.5 * poll_s if agent_id in run.stopping else poll_s)


def differs(run: Run, join: JoinRequest) -> str:
    """Return a warning about an agent whose size or command differs; empty if there is none.

    The agent asks for another size than an operator gave the run, or runs another command than the run's first agent.
    """
    if run.is_resized and (sizes := join.settings.conflicts(run.settings)):
        return words.resized(run.run_id, sizes)
    first = run.agents.get(run.command_of)
    if first is None or not join.command or join.command == first.join.command:
        return ""
    return words.other_command(join.node_id, first.node_id)


def _is_rejoining(run: Run, join: JoinRequest) -> bool:
    """Return whether a known agent has stopped the workers of its last round and is ready for the next.

    Any other join of a known agent is a repeated or delayed copy of one that the server has already accepted.
    """
    agent = run.agents[join.agent_id]
    return agent.state is _STOPPING and join.after_round == agent.round


def choose(run: Run) -> list[Agent]:
    """Return the waiting agents that get a seat: participants of the previous round first, then by order of joining."""
    seats = legal_sizes.fitting(run.settings, len(run.waiting))
    taken = run.seats
    old = [agent for agent_id, agent in run.waiting.items() if agent_id in taken] if taken else []
    new = (agent for agent_id, agent in run.waiting.items() if agent_id not in taken) if taken else run.waiting.values()
    if len(old) > seats:  # resized, or too few for a larger legal size: the first ranks keep their seats
        old.sort(key=lambda agent: taken[agent.agent_id].group_rank)
    chosen = old[:seats]
    return chosen + list(islice(new, seats - len(chosen)))


def is_uncertain(run: Run, besides: Collection[str] = ()) -> bool:
    """Return whether one of the agents that would get a seat in the forming round must first give a sign of life.

    Agents in `besides` do not count. With spares this is the same as a look at `choose`, which takes O(n): every event
    asks it.
    """
    uncertain = run.leases.uncertain
    if not uncertain:
        return False
    if len(run.waiting) <= legal_sizes.largest(run.settings):
        return any(run.agents[each].state not in _SEATLESS and each not in besides for each in uncertain)
    taken = run.seats
    old = run.survivors - len(run.stopping) - sum(agent_id in taken for agent_id in run.cordoned)
    seats = legal_sizes.fitting(run.settings, len(run.waiting))
    free = seats - old
    if free < 0:  # the first ranks get the seats
        ranks = (taken[each].group_rank for each in uncertain if each in taken and each in run.waiting)
        first = min(ranks, default=None)
        if first is None or first < seats:
            return first is not None
        return sum(map(run.waiting.__contains__, islice(taken, first))) < seats
    if not taken:
        spares = set(islice(reversed(run.waiting), len(run.waiting) - free))
        return any(each in run.waiting and each not in spares for each in uncertain)
    if any(each in taken and each in run.waiting for each in uncertain):
        return True
    return any(each in uncertain for each in islice((each for each in run.waiting if each not in taken), free))


def free_seats(run: Run) -> int:
    """Return how many seats waiting agents would fill beside the running round; 0 once workers have finished."""
    running = len(run.running)
    return 0 if run.succeeded else max(0, legal_sizes.fitting(run.settings, running + len(run.waiting)) - running)


def able(run: Run, without: str = "") -> int:
    """Return how many agents could take part in the next round, if the node `without` got no seat in it.

    Agents of cordoned nodes, and agents that leave, cannot. A run with more agents does not take longer.
    """
    there = (run.running, run.by_state[AgentState.SUCCEEDED], run.stopping, run.waiting)
    out = {agent_id for node_id in (*run.cordons, without) for agent_id in run.node_ids.get(node_id, ())}
    out |= run.leaving.keys()
    return sum(len(agents) - sum(agent_id in agents for agent_id in out) for agents in there)


def lacks(run: Run, without: str = "") -> int:
    """Return how many nodes the next round will lack to its minimum, if no node joins: see `able`."""
    return max(0, legal_sizes.smallest(run.settings) - able(run, without))


def next_scale_up(run: Run, now: float) -> float | None:
    """Return when the running round ends to admit waiting agents: now if they fill it, else after the window."""
    settings = run.settings
    on_notice = settings.scale_up == "on-notice"
    if on_notice and run.scale_up_at is not None:
        return run.scale_up_at  # a notice cannot be taken back
    if not run.waiting or free_seats(run) <= 0 or settings.scale_up == "manual":
        return None
    if on_notice:
        return now + (SCALE_UP_NOTICE_S if settings.notice_timeout_s is None else settings.notice_timeout_s)
    full = len(run.running) + len(run.waiting) >= legal_sizes.largest(run.settings)
    at = now if full else run.scale_up_at if run.scale_up_at is not None else now + settings.scale_up_window_s
    if settings.scale_up == "cooldown":
        return max(at, run.started_at + settings.scale_up_cooldown_s)
    return at
