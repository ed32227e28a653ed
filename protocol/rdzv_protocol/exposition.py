"""Prometheus' text format of what a server or an agent has counted, by `prometheus_client`.

What is counted on the way of a request is a plain number: `prometheus_client` is imported when somebody first asks for
the metrics, and only writes them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """A metric as its readers know it. A counter's name ends in `_total`, units are seconds and bytes."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """A histogram as it stood: the number of values in each bucket, the last one beyond all bounds, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """Distribution of values as it grows. `bounds`: the highest value of each bucket, ascending."""

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


class Sample(NamedTuple):
    """A metric's value for one set of its labels' values."""

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()


def exposition(metrics: Sequence[Metric], samples: Iterable[Sample]) -> bytes:
    """All metrics, also those without a sample, and the samples of each; then those of this process.

    Takes milliseconds, the first time a tenth of a second: to be called in a thread beside an event loop.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics, samples))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    def __init__(self, metrics: Sequence[Metric], samples: Iterable[Sample]) -> None:
        self._metrics, self._samples = metrics, samples

    def describe(self) -> Iterator[Any]:
        """Nothing: the registry, which lives for one answer, need not look for names that are taken."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        from prometheus_client import core

        kinds = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        families = {each: kinds[each.kind](each.name, each.help, labels=each.labels) for each in self._metrics}
        for metric, value, labels in self._samples:
            if isinstance(value, Distribution):
                families[metric].add_metric(labels, _buckets(value), value.sum)
            else:
                families[metric].add_metric(labels, value)
        return iter(families.values())


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    """Number of the values up to each bound, as Prometheus counts them."""
    bounds = [*map(repr, map(float, values.bounds)), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(values.counts), strict=True)]
