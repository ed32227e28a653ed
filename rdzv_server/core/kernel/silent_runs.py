"""Running rounds in which the server does not hear from any agent.

Either the nodes are gone or the path to them is broken, and nothing shows which.

Until an agent answers, a verdict would not help any agent, and live workers keep running. So no node is lost, no
restart is charged, no arrival is admitted, and no policy judges a node: the run warns and waits. Four things end this
wait:

- The server hears an agent. This agent is the witness that the others lacked: the server must hear each of them within
  one lease (see `liveness`).
- New agents join. They are witnesses, too. An agent of a node of the run replaces its predecessor at once. If as many
  new agents wait as the round has seats, they have come in the place of the silent agents. Then the server takes back
  the fresh leases of the silent agents.
- `MOST_S` seconds have passed: the workers must be gone, and the run ends.
- The server is full of runs or of agents, and new ones ask for a place. A run gives its place if the server has heard
  none of its agents for `GIVES_PLACE_S` seconds, and none has a connection. The longest silent run gives its place
  first. Its agents learn this when they are back.

If an operator restarts the run, resizes it or drains one of its nodes, a new round opens, which waits for no silent
agent.
"""

from rdzv_server.core import events
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import END_DELIVERED_WITHIN_S, Run, Stage
from rdzv_server.words import silent_runs as words

MOST_S = 86_400.0
"""Seconds after which a running round without any heard agent ends: a day, longer than most repairs take."""

GIVES_PLACE_S = 300.0
"""Seconds after which a silent run gives its place to new runs or agents. A run survives any faster repair."""
WANTED_S = 15.0
"""Seconds for which newcomers must ask for a place. An agent that can reach the server again is back by then."""
ASKED_AGAIN_S = 60.0
"""Most seconds between two requests for a place that count as consecutive."""


def _silent_s(run: Run, now: float) -> int:
    assert run.unheard_since is not None
    return round(now - run.unheard_since)


def deadline(run: Run) -> float | None:
    """Return the time at which something follows for a run without any heard agent: now if an agent is heard again."""
    assert run.unheard_since is not None
    if run.leases.is_any_certain:
        return run.unheard_since
    at, asked_until = run.unheard_since + MOST_S, run.queries.next_deadline()
    return at if asked_until is None else min(at, asked_until)


def due(run: Run, now: float) -> events.ContactLost | events.ContactRegained | events.RunDeserted | None:
    """Return a fact if the contact with a running round has changed, else None."""
    if run.unheard_since is None:
        return events.ContactLost(run.leases.heard_at) if run.leases.are_silent(now) else None
    if run.leases.is_any_certain:
        certain = next(agent for agent_id, agent in run.agents.items() if agent_id not in run.leases.uncertain)
        return events.ContactRegained(certain.node_id)
    return events.RunDeserted() if now >= run.unheard_since + MOST_S else None


def lost(machine: Machine, fact: events.ContactLost, now: float) -> None:
    run = machine.run
    run.unheard_since = fact.heard_at
    run.leases.suspect_all()
    machine.record_event("warning", words.awaited(_silent_s(run, now)), now)


def regained(machine: Machine, fact: events.ContactRegained, now: float) -> None:
    run = machine.run
    silent_s, run.unheard_since = _silent_s(run, now), None
    machine.record_event("warning", words.heard_again(silent_s, fact.node_id, has_others=len(run.agents) > 1), now)


def deserted(machine: Machine, fact: events.RunDeserted, now: float) -> None:
    run, silent_s = machine.run, _silent_s(machine.run, now)
    why = words.not_heard(silent_s)
    if fact.for_room or fact.for_agents:
        why = words.gave_place(silent_s, to_agents=fact.for_agents)
        run.gave_place, run.forget_at = True, now + min(run.settings.lease_s, END_DELIVERED_WITHIN_S)
    machine.end(Stage.FAILED, why, None, now)


def may_give_place(run: Run, now: float) -> bool:
    """Return whether no agent of the running round has a connection, and this server has heard none for minutes."""
    is_silent = run.unheard_since is not None and now >= run.leases.heard_at + GIVES_PLACE_S
    return is_silent and run.leases.is_none_connected


def newcomer(run: Run) -> None:
    """Take back the leases of the round's spared agents if as many new agents wait as it has seats and all are
    heard."""
    leases = run.leases
    if len(run.waiting) < len(run.seats):
        return
    participants = [agent_id for agent_id, agent in run.agents.items() if agent.has_part]
    new = sum(agent_id not in leases.uncertain and agent_id not in run.seats for agent_id in run.waiting)
    if new >= len(run.seats) and all(agent_id in leases.spared for agent_id in participants):
        leases.give_up(participants)
