"""Loaders that draw batches before the training loop gets them, as torch's does with its processes."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from node_agent.data import ElasticSampler


class Ahead:
    """A loader of the numbers of the samples, which has up to `ahead` batches more than it has handed out."""

    dataset = None

    def __init__(self, sampler: ElasticSampler, ahead: int) -> None:
        self.batch_sampler, self._ahead = sampler, ahead

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        drawn = iter(self.batch_sampler)
        held = deque(islice(drawn, self._ahead))
        while True:
            held.extend(islice(drawn, 1))
            if not held:
                return
            yield held.popleft()
