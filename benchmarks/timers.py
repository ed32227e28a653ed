"""torchrun where it waits for timers of its own for half a minute or more, in several scenarios at once.

While it waits it uses hardly any CPU, so the scenarios do not disturb each other, and the figures are those of the
timers.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from benchmarks.launchers import Plan
from benchmarks.recoveries import ELASTIC, NOTICED, REPLACEMENT, SCALE_UP, SILENT, UNNOTICED
from benchmarks.results import Row
from benchmarks.stage import Broken

SCENARIOS = (ELASTIC, NOTICED, UNNOTICED, SILENT, SCALE_UP, REPLACEMENT)
CALLERS = 10
"""Number of scenarios at once: two agents each, of 220 MB each."""
CAP_S = 600.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Call = Callable[[], list[float]]
_calls: Sequence[Call] = ()


def measure(plan: Plan) -> list[Row]:
    """Measure one sample of each scenario. The rows belong to the lines of the scenarios."""
    forms = plan.torchruns(least_timers=True)
    cases = [(scenario, form) for scenario in SCENARIOS for form in forms if form.name in scenario.slow]
    answers = at_once([partial(scenario.sample, form, 1) for scenario, form in cases])
    return [
        Row(
            measurement=scenario.measurement, subject=form.name, unit=scenario.unit, cap=scenario.cap,
            samples=samples, trouble=trouble,
        )
        for (scenario, form), (samples, trouble) in zip(cases, answers, strict=True)
    ]  # fmt: skip


def at_once(calls: Sequence[Call]) -> list[tuple[list[float], str]]:
    """Return the samples of each call, or why there are none. Several calls run at once, each in its own process."""
    with multiprocessing.get_context("fork").Pool(min(CALLERS, len(calls)) or 1, _begin, (calls,)) as pool:
        return pool.map_async(_answer, range(len(calls)), chunksize=1).get(CAP_S)


def _begin(calls: Sequence[Call]) -> None:
    global _calls
    _calls = calls
    for signum in SIGNALS:
        signal.signal(signum, _leave)


def _answer(number: int) -> tuple[list[float], str]:
    try:
        return _calls[number](), ""
    except (Broken, OSError) as error:
        return [], str(error) or repr(error)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Raise `SystemExit`, so that all processes are ended; ignore later signals, since Ctrl-C reaches all processes."""
    for each in SIGNALS:
        signal.signal(each, lambda *args: None)
    raise SystemExit(128 + signum)
