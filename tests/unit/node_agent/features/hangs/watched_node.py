"""Workers of one node, watched by the hang detectors, with a simulated clock."""

import re
from math import inf
from typing import Any

from node_agent.features.hangs.detector import HangDetector
from node_agent.features.hangs.progress_source import Rhythms
from node_agent.features.hangs.rule_source import LineMatch
from node_agent.features.hangs.suspicion import Signs, Suspicion
from node_agent.in_worker import KINDS
from node_agent.kernel.core.progress import Reading, Spent

POLL_S = 10.0
GAP_S = POLL_S + 2.0
HOUR_S = 3600.0


class Node:
    """Workers of one node with their detector, an agent that polls, and a shared clock."""

    def __init__(self, ranks: range = range(2), world_size: int = 2, **sources: Any) -> None:
        self.now = 1_000.0
        self._sources, self._ranks, self._rhythms = sources, ranks, Rhythms()
        self._begins(world_size)
        self.last_output_at = {rank - ranks[0]: 0.0 for rank in ranks}
        self.last_sign_at = 0.0
        self.uninterruptible: frozenset[tuple[int, int]] = frozenset()
        self.held_since: float | None = None
        self.found: list[Suspicion] = []
        self.server_answers = True
        self.looks = 0
        self.lines_seen_until = inf
        self._poll_at = self.now

    def _begins(self, world_size: int) -> None:
        self.world_size = world_size
        rhythm = self._rhythms.next_round(world_size)
        self.detector = HangDetector(self._ranks, rhythm, GAP_S, self.now, **self._sources)
        self.readings: dict[int, Reading] = {}

    def restarts(self, world_size: int | None = None) -> None:
        """Stop the workers and start new ones."""
        self.detector.cut_off(self._signs(), self.now)
        self._begins(world_size or self.world_size)

    def progress(self, *ranks: int, step: int | None = None, kind: str = "step") -> None:
        kind = kind if kind in KINDS else "other"
        for rank in ranks or self.last_output_at:
            last = self.readings.get(rank)
            spent = dict(last.spent) if last else dict.fromkeys(KINDS, Spent())
            if last:
                took, before = self.now - last.at, spent[kind]
                longest_s = max(before.longest_s, took)
                spent[kind] = Spent(before.times + 1, before.total_s + took, longest_s)
            number = last.number + 1 if last else 1
            self.readings[rank] = Reading(number, step, None, kind, self.now, spent)

    def writes(self, rank: int, text: str = "") -> None:
        self.last_output_at[rank] = self.last_sign_at = self.now
        for number, rule in enumerate(self._sources.get("log_rules", ())):
            if match := re.search(rule.pattern, text):
                captured = match.group(1) if match.groups() else match.group(0)
                self.found += self.detector.line(rank, LineMatch(number, text, captured), self.now)

    def exits(self, rank: int) -> None:
        """The worker exits 0."""
        del self.last_output_at[rank]
        self.last_sign_at = self.now

    def passes(self, seconds: float) -> list[Suspicion]:
        """Let time pass for all, and return the findings."""
        before, end = len(self.found), self.now + seconds
        while True:
            look_at = self.detector.next_deadline()
            at = min(end, self._poll_at, end if look_at is None else look_at)
            self.now = max(self.now, at)
            if self.now >= self._poll_at:
                self._poll_at = self.now + POLL_S
                if self.server_answers:
                    self.detector.server_answered(self.now)
            if look_at is not None and self.now >= look_at:
                self.looks += 1
                self.found += self.detector.look(self._signs(), self.now)
            if self.now >= end:
                return self.found[before:]

    def stands_still(self, seconds: float) -> None:
        """Freeze the whole node: agent and workers."""
        self.now += seconds

    def _signs(self) -> Signs:
        return Signs(
            readings=dict(self.readings),
            last_output_at=dict(self.last_output_at),
            last_sign_at=self.last_sign_at,
            lines_seen_until=self.lines_seen_until,
            uninterruptible=self.uninterruptible,
            held_since=self.held_since,
        )
