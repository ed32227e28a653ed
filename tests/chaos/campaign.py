"""A plan carried out: chaos for a while, then calm, then the end of the run, and what must be true of it."""

import asyncio
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.deeds import Act
from tests.chaos.fleet import NODES, NPROC, Fleet, fleet
from tests.chaos.ledger import Ledger
from tests.chaos.monkey import Monkey
from tests.chaos.plan import Step
from tests.chaos.training import CHECKPOINT_EVERY, undisturbed

NUISANCE_WITHIN_S = 1.0
"""How long after its deed has begun a nuisance begins at the latest."""


class Campaign:
    """The log of what was done, and what came of it."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.log: list[str] = []
        self.took: list[tuple[Step, float]] = []
        """The steps that ended well, with their durations in seconds."""
        self.ledger = Ledger()
        self._steps = steps
        self._began = time.monotonic()

    async def run(self, folder: Path) -> None:
        """Raises `AssertionError` about the first thing that is not as it must be."""
        async with fleet(folder) as patient:
            await self._monkey(patient, "begin").calm()
            for step in self._steps:
                self._say(str(step))
                with self._timed(step):
                    await self._carry_out(patient, step)
            await self._end(patient)

    async def _carry_out(self, patient: Fleet, step: Step) -> None:
        async with asyncio.TaskGroup() as both:
            if step.nuisance:
                both.create_task(self._disturb(patient, step.nuisance, step.seed))
            both.create_task(self._act(step.deed.act, patient, step.seed))
        await self._monkey(patient, step.seed).calm()

    async def _act(self, act: Act, patient: Fleet, seed: str) -> None:
        await act(self._monkey(patient, seed))

    async def _disturb(self, patient: Fleet, nuisance: Act, seed: str) -> None:
        monkey = self._monkey(patient, f"nuisance {seed}")
        await monkey.pause(0.0, NUISANCE_WITHIN_S)
        await nuisance(monkey)

    async def _end(self, patient: Fleet) -> None:
        self._say("calm: the run may finish")
        await patient.finish_run()
        self._check_training(patient)
        view = await patient.view()
        assert view["phase"] == "succeeded", view["reason"]
        assert not (differences := self.ledger.differences(view)), "; ".join(differences)
        await patient.end_server()
        assert not (left := patient.leftovers()), f"left behind: {', '.join(left)}"

    def _check_training(self, patient: Fleet) -> None:
        ends = patient.training.ends()
        assert sorted(ends) == list(range(NPROC * len(NODES)))
        ((steps, value),) = set(ends.values())
        assert value == undisturbed(steps), "a step was lost or taken twice"
        repeated = patient.training.repeated()
        assert len(repeated) == len(self.ledger.entries), f"{len(repeated)} restarts, not {len(self.ledger.entries)}"
        assert all(-1 <= steps < CHECKPOINT_EVERY for steps in repeated), f"steps taken again: {repeated}"

    def _monkey(self, patient: Fleet, seed: str) -> Monkey:
        return Monkey(patient, self.ledger, random.Random(seed), self._say)

    def _say(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.2f}  {text}")

    @contextmanager
    def _timed(self, step: Step) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.took.append((step, time.monotonic() - began))
