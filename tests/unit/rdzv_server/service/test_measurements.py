"""Measurements of a server that stops leading runs."""

import gc

from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import EmitEvent, ForgetRun, Record
from rdzv_server.core.events import NodeJoined, NodeLost
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.driver import Driver
from rdzv_server.service.measurements import Measurements, RunMeasurements
from rdzv_server.storage.base import MemoryStore
from tests.support.scenario import a_join, settings_of


def footprint(measurements: Measurements | RunMeasurements) -> int:
    """Return the number of container entries in the measurements, at any depth."""
    seen, left, entries = set[int](), [measurements.__dict__], 0
    while left:
        each = left.pop()
        if id(each) not in seen and isinstance(each, dict | list | set):
            seen.add(id(each))
            entries += len(each)
            left += gc.get_referents(each)
    return entries


async def test_runs_that_another_server_leads_now_are_forgotten() -> None:
    measurements = Measurements()
    before = footprint(measurements)
    for number in range(3):
        driver = Driver(Registry(3_600.0), MemoryStore(), measurements)
        await driver.start()
        join = a_join("a", settings=settings_of("2"), run_id=f"run-{number}")
        await driver.submit(join.run_id, NodeJoined(join, "10.0.0.9"))
        await driver.stop()
    assert footprint(measurements) - before <= 2, "the kinds of events that were counted"
    assert measurements.happened["run_created"] == 3


def test_a_lost_agent_counts_as_expired_by_its_lease_and_not_by_words() -> None:
    measurements = Measurements()
    lost = NodeLost("a", "in any words", is_expired=True), NodeLost("b", "not heard for a while")
    measured = RunMeasurements(measurements)
    for fact in lost:
        measured.observe(Record("run", 1, 1.0, fact))
    assert measurements.leases_expired == 1


def test_a_forgotten_run_leaves_no_record_if_its_round_never_began() -> None:
    """Such a run was set apart: an ended one is forgotten at its end."""
    measured = RunMeasurements(Measurements())
    before = footprint(measured)
    created = RunEvent(number=1, run_id="run", attempt=1, round=1, kind="run_created", reason="joined")
    measured.observe(EmitEvent(created))
    assert footprint(measured) > before
    measured.observe(ForgetRun("run", 1))
    assert footprint(measured) == before
