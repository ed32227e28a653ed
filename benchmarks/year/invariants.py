"""Invariants of a simulated year: every node has a place, ranks are held once, and the ledgers add up."""

from collections.abc import Iterable
from math import isclose

from benchmarks.year.agents import Node
from benchmarks.year.model import Ledger
from rdzv_server.core.kernel import completion
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.core.policies import time_ledger


class Violation(AssertionError):
    """Error: an invariant does not hold."""


def check_holder(run: Run, rank: int, holder: str, node: str) -> None:
    """Raise `Violation` if another node holds the group rank of this round."""
    if holder != node:
        raise Violation(f"{holder} and {node} both have rank {rank} of round {run.round}")


def check_quiet(run: Run, pool: Iterable[Node], is_stuck: bool) -> None:
    """Raise `Violation` unless every healthy agent has its place, and each place one agent.

    This must hold when nothing has happened for a while. `is_stuck`: whether a node keeps the others from continuing.
    """
    if run.stage is Stage.FORMING and not completion.deadline(run):
        raise Violation(f"round {run.round} forms without an end")
    ranks, agents, round_ = [], run.agents, run.round
    for node in pool:
        agent, assignment = node.agent, node.assignment
        if agent is None or not node.hears:
            continue
        part = agents.get(agent.agent_id)
        if part is None:
            raise Violation(f"{node.name} is well, {agent.machine.state}, and not part of the run")
        if assignment is None:
            if part.has_part:
                raise Violation(f"{node.name} has a seat in round {round_} and no workers")
        elif assignment.round != round_:
            raise Violation(f"{node.name} still works in round {assignment.round}, and round {round_} is there")
        else:
            ranks.append(assignment.first_rank)
    is_whole = run.stage is Stage.RUNNING and not is_stuck
    if is_whole and run.membership and sorted(ranks) != list(range(run.membership.world_size)):
        raise Violation(f"round {run.round} has other ranks than its own: {len(ranks)}")


def check_sums(run: Run, ledger: Ledger, now: float) -> None:
    """Raise `Violation` unless both ledgers, the training's and the server's, add up to the wall clock."""
    if not isclose(ledger.total_s, now, rel_tol=1e-9):
        raise Violation(f"the ledger has {ledger.total_s} s of {now}")
    status = time_ledger.view(run, now)
    until = run.ended_at if run.ended_at is not None else now
    told = status.running + status.forming + status.restarting + status.waiting
    if not isclose(told, until - run.created_at, rel_tol=1e-9, abs_tol=0.1):
        raise Violation(f"the server's ledger has {told} s of {until - run.created_at}")
