"""Memory that each worker of a round shares with the agent, to write its progress into: see `node_agent.in_worker`.

It is a file without a name (memfd), so that nothing is left over and no disk can hold a worker up. Workers find it by
the agent's descriptor in /proc. The agent reads and never maps it: a worker that shortens it harms itself alone.
"""

import os
from collections.abc import Mapping
from math import isfinite

from rdzv_protocol.messages import Progress

from node_agent.in_worker import FILE_BYTES, HEADER, KINDS, LARGEST, MAGIC, PROGRESS_FILE, RECORD, offset
from node_agent.kernel.core.progress import Pace, Reading, Spent, summary

MOST_TRIES = 3
"""A record that is replaced while it is read is read again; a worker that writes so fast is well."""


class ProgressFiles:
    """Files of one round's workers, by local rank. Without descriptors left, workers go without."""

    def __init__(self, round_: int, workers: int) -> None:
        self._round = round_
        self._pace = Pace()
        self._files: list[int] = []
        for _ in range(workers):
            try:
                self._files.append(_create())
            except OSError:
                break

    def environment(self, local_rank: int) -> Mapping[str, str]:
        """Variable that names the worker's file."""
        if local_rank >= len(self._files):
            return {}
        return {PROGRESS_FILE: f"/proc/{os.getpid()}/fd/{self._files[local_rank]}"}

    def read(self) -> dict[int, Reading]:
        """Latest reading of each worker that has told of progress, by local rank."""
        readings = ((rank, _read(file)) for rank, file in enumerate(self._files))
        return {rank: reading for rank, reading in readings if reading}

    def summary(self, now: float) -> Progress | None:
        """Progress of all workers together."""
        readings = self.read()
        self._pace.look(readings)
        return summary(self._round, readings.values(), self._pace, now)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _create() -> int:
    file = os.memfd_create("node-agent-progress", os.MFD_CLOEXEC)
    os.ftruncate(file, FILE_BYTES)
    os.pwrite(file, MAGIC, 0)
    return file


def _read(file: int) -> Reading | None:
    for _ in range(MOST_TRIES):
        data = os.pread(file, FILE_BYTES, 0)
        if len(data) < FILE_BYTES:
            return None
        _, number = HEADER.unpack_from(data)
        if number == 0:
            return None
        record = RECORD.unpack_from(data, offset(number))
        if record[0] == number:
            return _reading(record) if _is_possible(record) else None
    return None


def _is_possible(record: tuple[int | float, ...]) -> bool:
    """Whether a worker can have told this: a script that overwrites the memory harms no agent."""
    _, step, checkpoint_step, kind, at, *spent = record
    seconds = (at, *spent[1::3], *spent[2::3])
    are_numbers = all(isfinite(each) and each >= 0 for each in seconds)
    return are_numbers and step <= LARGEST and checkpoint_step <= LARGEST and kind < len(KINDS)


def _reading(record: tuple[int | float, ...]) -> Reading:
    number, step, checkpoint_step, kind, at, *spent = record
    return Reading(
        number=int(number),
        step=int(step) if step >= 0 else None,
        checkpoint_step=int(checkpoint_step) if checkpoint_step >= 0 else None,
        kind=KINDS[int(kind)],
        at=float(at),
        spent={
            name: Spent(int(spent[3 * i]), float(spent[3 * i + 1]), float(spent[3 * i + 2]))
            for i, name in enumerate(KINDS)
        },
    )
