"""torchrun where it waits for timers of its own for half a minute and more, in several scenarios at the same time.

While it waits it takes hardly any CPU, so that one does not disturb another: what is measured are its timers.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.arriving import REPLACEMENT, SCALE_UP
from benchmarks.at_once import at_once
from benchmarks.launchers import Launcher
from benchmarks.lost_agent import NOTICED, UNNOTICED
from benchmarks.plan import Plan
from benchmarks.recovery import ELASTIC
from benchmarks.results import Row
from benchmarks.scenario import Scenario
from benchmarks.silent import SILENT
from benchmarks.stage import Broken

SCENARIOS = (ELASTIC, NOTICED, UNNOTICED, SILENT, SCALE_UP, REPLACEMENT)
AT_ONCE = 10
"""Two agents each, of 220 MB each."""

Case = tuple[Scenario, Launcher]


def measure(plan: Plan) -> list[Row]:
    """One sample each. The rows belong to the lines of their scenarios."""
    cases = list(_cases(plan))
    batches = [cases[first : first + AT_ONCE] for first in range(0, len(cases), AT_ONCE)]
    return [row for batch in batches for row in _watch(batch)]


def _cases(plan: Plan) -> Iterator[Case]:
    for scenario in SCENARIOS:
        for form in plan.torchruns(least_timers=True):
            if form.name in scenario.slow:
                yield scenario, form


def _watch(batch: Sequence[Case]) -> Iterator[Row]:
    answers = at_once([partial(scenario.sample, form, 1) for scenario, form in batch])
    for (scenario, form), answer in zip(batch, answers, strict=True):
        is_broken = isinstance(answer, Broken)
        yield Row(
            measurement=scenario.measurement, subject=form.name, unit=scenario.unit, cap=scenario.cap,
            samples=() if isinstance(answer, Broken) else answer, trouble=str(answer) if is_broken else "",
        )  # fmt: skip
