"""The shuffled order of an epoch, computed place by place.

It is a permutation by a Feistel network: the places form a rectangle, and each round shifts the rows by random amounts,
then the columns. The random amounts take memory in proportion to the square root of the length. Computing a place takes
a microsecond. ADR 70 has the reasons.
"""

import math
import sys
from array import array
from hashlib import shake_128

ROUNDS = 4
"""Rounds of two shifts each. The tests of uniformity fail with two."""


class Shuffled:
    """A permutation of the numbers below `length`, the same on every machine and in every version of Python."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self._length = length
        self._columns = math.isqrt(length - 1) + 1
        self._rows = -(-length // self._columns)
        size = self._columns + self._rows
        amounts = array("I", shake_128(f"node-agent 1 {length} {seed} {epoch}".encode()).digest(4 * size * ROUNDS))
        if sys.byteorder == "big":
            amounts.byteswap()
        rounds = [amounts[start : start + size] for start in range(0, len(amounts), size)]
        self._rounds = [(each[: self._columns], each[self._columns :]) for each in rounds]

    def __getitem__(self, place: int) -> int:
        """Return the sample at this place of the epoch."""
        columns, rows = self._columns, self._rows
        row, column = divmod(place, columns)
        while True:
            for of_column, of_row in self._rounds:
                row = (row + of_column[column]) % rows
                column = (column + of_row[row]) % columns
            if (index := row * columns + column) < self._length:  # else it is in the unused corner
                return index


def order_of(length: int, seed: int, epoch: int, shuffle: bool) -> Shuffled | range:
    """Return the order of an epoch."""
    return Shuffled(length, seed, epoch) if shuffle else range(length)
