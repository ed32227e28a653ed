"""Observers of a driver, such as streams, the page and the metrics. An error in one of them does not affect runs.

An observer gets each effect of a batch after the batch is written and carried out. If it raises over one effect, it
still gets the next ones.
"""

import logging
from collections.abc import Callable, Sequence

from rdzv_server.core.effects import Effect, EmitEvent, NotifyReplayed
from rdzv_server.core.runs.set_apart import own_error
from rdzv_server.service.measurements import Measurements, RunMeasurements
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

Observer = Callable[[Effect], None]
"""Callback that takes an effect. It must return soon."""


class Observers:
    """Observers of one driver, and the runs over whose events they raised."""

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements
        self._all: list[Observer] = [RunMeasurements(measurements).observe]
        self._replayed: Sequence[NotifyReplayed] = ()
        """Cordons, and their ends, that the store had at the start."""
        self._failed: dict[str, set[str]] = {}
        """Names of the observers that raised over an event, by run id. Only the first error of each is logged."""

    def begin(self, replayed: Sequence[NotifyReplayed]) -> None:
        """Tell all observers, and all later ones, which facts about nodes the store had at the start."""
        self._replayed = replayed
        self.tell_all(replayed)

    def add(self, observer: Observer) -> None:
        """Call `observer` for every effect from now on."""
        self._all.append(observer)
        self._tell(observer, self._replayed)

    def tell_all(self, effects: Sequence[Effect]) -> None:
        for observer in self._all:
            self._tell(observer, effects)

    def failed(self, run_id: str, observer: str, error: Exception) -> None:
        """Count an error of an observer over an event of the run, and log the observer's first one.

        `run_id`: empty for a fact about nodes.
        """
        self._measurements.event_errors += 1
        failed = self._failed.setdefault(run_id, set())
        if observer not in failed:
            failed.add(observer)
            log.error("%s", words.event_failed(run_id, observer, own_error(error)), exc_info=error)

    def forget(self, run_id: str) -> None:
        """Forget the errors over events of a run."""
        self._failed.pop(run_id, None)

    @property
    def failed_runs(self) -> list[str]:
        """Ids of the runs over whose events an observer raised an exception."""
        return [run_id for run_id in self._failed if run_id]

    def _tell(self, observer: Observer, effects: Sequence[Effect]) -> None:
        for effect in effects:
            try:
                observer(effect)
            except Exception as error:
                self.failed(_run_id_of(effect), observer.__qualname__, error)


def _run_id_of(effect: Effect) -> str:
    """Return the id of the run that the effect is about; empty if it is not about a run."""
    return effect.event.run_id if isinstance(effect, EmitEvent) else getattr(effect, "run_id", "")
