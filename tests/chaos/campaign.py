"""Runs a plan: chaos for a while, then calm, then the end of the run and its checks."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rdzv_protocol.exit_codes import ExitCode

from tests.chaos.fleet import NODES, Fleet, Setting, View, fleet
from tests.chaos.ledger import Ledger
from tests.chaos.monkey import Act, Monkey
from tests.chaos.plan import Step
from tests.hosts.training import CHECKPOINT_EVERY, undisturbed

FAULT_WITHIN_S = 1.0
NEWS_EVERY_S = 60.0
"""Latest start of a fault after that of its action, in seconds."""


@dataclass(frozen=True)
class Outcome:
    """A step, its duration in seconds, and whether the run survived it."""

    step: Step
    took_s: float
    is_well: bool


class Campaign:
    """The log of all actions, and their outcomes."""

    def __init__(self, steps: Iterable[Step], seed: int, setting: Setting) -> None:
        self.log: list[str] = []
        self.outcomes: list[Outcome] = []
        self.ledger = Ledger()
        self._steps = steps
        self._seed = seed
        self._setting = setting
        self._began = self._told_at = time.monotonic()

    async def run(self, folder: Path) -> None:
        """Play all steps. Raise an error about the first wrong result."""
        async with fleet(folder, self._setting) as patient:
            async with self._server_perhaps_down(patient, "begin"):
                pass
            await self._monkey(patient, "begin").calm()
            for step in self._steps:
                async with self._noted(step):
                    await self._carry_out(patient, step)
            await self._end(patient)

    async def _carry_out(self, patient: Fleet, step: Step) -> None:
        monkey = self._monkey(patient, step.seed)
        async with asyncio.TaskGroup() as both:
            both.create_task(step.action.act(monkey))
            if step.fault:
                both.create_task(self._disturb(step.fault, patient, step.seed))
        await monkey.calm()
        await monkey.blames_no_evicted_node()

    async def _disturb(self, fault: Act, patient: Fleet, seed: str) -> None:
        monkey = self._monkey(patient, f"fault {seed}")
        await monkey.pause(0.0, FAULT_WITHIN_S)
        await fault(monkey)

    async def _end(self, patient: Fleet) -> None:
        monkey = self._monkey(patient, f"failure {self._seed}")
        if self._setting.no_restarts and monkey.random.random() < 0.5:
            await self._fail(patient, monkey)
        else:
            await self._succeed(patient)
        await patient.end_servers()
        await patient.leaves_nothing()

    async def _succeed(self, patient: Fleet) -> None:
        async with self._server_perhaps_down(patient, "end"):
            self._log("the run may finish")
            await patient.finish_work()
        await patient.ends(ExitCode.SUCCEEDED)
        _check_training(patient, self.ledger)
        await self._check_end(patient, "succeeded")

    async def _fail(self, patient: Fleet, monkey: Monkey) -> None:
        """Let a worker really fail, which ends a run without restarts."""
        (node,) = monkey.nodes(1)
        async with self._server_perhaps_down(patient, "end"):
            monkey.kill_workers(node)
        await patient.ends(ExitCode.FAILED)
        self.ledger.no_round_follows()
        view = await self._check_end(patient, "failed")
        assert view["end_failure"]["node_id"] == node, view["reason"]

    async def _check_end(self, patient: Fleet, phase: str) -> View:
        view = await patient.view()
        assert view["phase"] == phase, view["reason"]
        assert not (differences := self.ledger.differences(view)), "; ".join(differences)
        return view

    @asynccontextmanager
    async def _server_perhaps_down(self, patient: Fleet, when: str) -> AsyncIterator[None]:
        monkey = self._monkey(patient, f"{when} {self._seed}")
        if monkey.random.random() < 0.5:
            yield
            return
        await monkey.pause(0.0, 0.5)
        async with monkey.server_down():
            yield

    def _monkey(self, patient: Fleet, seed: str) -> Monkey:
        return Monkey(patient, self.ledger, random.Random(seed), self._log)

    def _log(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.2f}  {text}")

    @asynccontextmanager
    async def _noted(self, step: Step) -> AsyncIterator[None]:
        self._log(str(step))
        began, is_well = time.monotonic(), False
        try:
            yield
            is_well = True
        finally:
            now = time.monotonic()
            self.outcomes.append(Outcome(step, now - began, is_well))
            if now - self._told_at > NEWS_EVERY_S:
                self._told_at = now
                print(f"seed {self._seed}: {len(self.outcomes)} actions so far", file=sys.stderr, flush=True)


def _check_training(patient: Fleet, ledger: Ledger) -> None:
    """Check that every worker has learned the same as without faults, and that no restart lost a checkpoint.

    If survivors save the last step, a restart does not lose a step that all workers have completed.
    """
    ends = patient.training.ends()
    assert sorted(ends) == list(range(patient.nproc * len(NODES)))
    ((steps, value),) = set(ends.values())
    assert value == undisturbed(steps), "a step was lost or taken twice"
    repeated = patient.training.repeated()
    restarts = len(ledger.entries)
    assert len(repeated) <= restarts, f"the training began again {len(repeated)} times, not {restarts}"
    assert all(-1 <= again < CHECKPOINT_EVERY for again in repeated), f"steps that were taken again: {repeated}"
    if patient.setting.survivors:
        lost = sum(again > 1 for again in repeated)
        assert lost <= ledger.without_survivors, f"{lost} restarts took several steps again: {repeated}"
