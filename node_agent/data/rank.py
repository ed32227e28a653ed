"""Rank for which data is loaded."""

import os
from dataclasses import dataclass

from node_agent.data import words


@dataclass(frozen=True)
class DataRank:
    """Rank and number of ranks. If they are None, they come from the launcher's environment variables."""

    rank: int
    world_size: int

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> "DataRank":
        world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        at_least("world_size", world_size, 1)
        if not 0 <= rank < world_size:
            raise ValueError(words.no_such_rank(rank, world_size))
        return cls(rank, world_size)


def at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(words.too_small(name, value, least))
