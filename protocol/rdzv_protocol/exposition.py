"""Prometheus' text format for the metrics of a server or an agent, by `prometheus_client`.

Values that are counted during requests are plain numbers. `prometheus_client` only writes them, and is imported at the
first request for the metrics.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["gauge", "counter", "histogram"]


class Metric(Struct, frozen=True):
    """A metric as its readers know it. A counter's name ends in `_total`; units are seconds and bytes."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Distribution(Struct, frozen=True):
    """State of a histogram: the number of values in each bucket, with a last bucket above all bounds, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """Distribution that grows with each value. `bounds`: the highest value of each bucket, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._sum)


class Sample(Struct, frozen=True):
    """A metric's value for one set of label values."""

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()


SAMPLES_PER_PIECE = 32
"""Number of samples in one piece of `exposition`."""


def exposition(metrics: Sequence[Metric], samples: Iterable[Sample]) -> Iterator[bytes]:
    """Yield all metrics, each with its samples if it has any, in pieces that take less than a millisecond.

    The first piece imports `prometheus_client`, which takes a tenth of a second.
    """
    from prometheus_client import generate_latest

    of_metric: dict[Metric, list[Sample]] = {each: [] for each in metrics}
    for sample in samples:
        of_metric[sample.metric].append(sample)
    for metric, all_of_it in of_metric.items():
        for begin in range(0, len(all_of_it) or 1, SAMPLES_PER_PIECE):
            piece = generate_latest(_Family(metric, all_of_it[begin : begin + SAMPLES_PER_PIECE]))
            yield piece.split(b"\n", 2)[2] if begin else piece  # HELP and TYPE are only above the first piece


def of_process() -> bytes:
    """Return the metrics of this process: its memory, CPU time and open files. Counting 10,000 files takes 20 ms.

    Call it in a thread beside an event loop, also because it imports `prometheus_client`.
    """
    from prometheus_client import ProcessCollector, generate_latest

    return generate_latest(ProcessCollector(registry=None))


class _Family:
    """Collector of some samples of one metric."""

    def __init__(self, metric: Metric, samples: Sequence[Sample]) -> None:
        self._metric, self._samples = metric, samples

    def collect(self) -> Iterator[Any]:
        from prometheus_client import core

        kinds = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        family = kinds[self._metric.kind](self._metric.name, self._metric.help, labels=self._metric.labels)
        for sample in self._samples:
            if isinstance(sample.value, Distribution):
                family.add_metric(sample.labels, _buckets(sample.value), sample.value.sum)
            else:
                family.add_metric(sample.labels, sample.value)
        yield family


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    """Return the number of values up to each bound, as Prometheus counts them."""
    bounds = [*map(repr, map(float, values.bounds)), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(values.counts), strict=True)]
