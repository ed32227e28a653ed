"""Memory that each worker of a round shares with the agent to report progress: see `node_agent.in_worker`.

It is an unnamed file (memfd), so that nothing remains and no disk can block a worker. A worker opens it through the
agent's descriptor in /proc. The agent reads the file but never maps it, so a worker that shortens it harms only itself.
"""

import os
from collections.abc import Mapping
from math import isfinite

from msgspec.structs import replace
from rdzv_protocol.messages import Progress

from node_agent.in_worker import (
    FILE_BYTES,
    HEADER,
    KINDS,
    LARGEST,
    MAGIC,
    PHASES,
    PROGRESS_FILE,
    RECORD,
    RESUMED,
    RESUMED_AT,
    STARTS,
    STARTS_AT,
    offset,
)
from node_agent.kernel.core.progress import Pace, Reading, Spent, summary
from node_agent.kernel.processes.system_calls import memfd_create

MOST_TRIES = 3
"""Most reads of a record that is replaced meanwhile. A worker that writes so fast does not hang."""


class ProgressFiles:
    """Files of one round's workers, by local rank. If no descriptors are left, workers have no file."""

    def __init__(self, round_: int, workers: int, now: float = 0.0) -> None:
        self._round = round_
        self._read_at = now
        """Time of the last read. A record that is new since then was written later."""
        self._shifts: dict[int, tuple[int, float]] = {}
        """Number of each worker's last record, and the seconds by which its clock is behind the agent's."""
        self._pace = Pace()
        self._files: list[int] = []
        self.spawned_at: float | None = None
        """Time at which the agent had started the last of the workers."""
        for _ in range(workers):
            try:
                self._files.append(_create())
            except OSError:
                break

    def environment(self, local_rank: int) -> Mapping[str, str]:
        """Return the variable that names the worker's file."""
        if local_rank >= len(self._files):
            return {}
        return {PROGRESS_FILE: f"/proc/{os.getpid()}/fd/{self._files[local_rank]}"}

    def read(self, now: float) -> dict[int, Reading]:
        """Return the latest reading of each worker that has reported progress, by local rank."""
        readings = ((rank, _read(file)) for rank, file in enumerate(self._files))
        found = {rank: self._by_own_clock(rank, reading, now) for rank, reading in readings if reading}
        self._read_at = now
        return found

    def _by_own_clock(self, rank: int, reading: Reading, now: float) -> Reading:
        """Return the reading with times by the agent's clock: a worker in a time namespace has another one."""
        number, shift = self._shifts.get(rank, (0, 0.0))
        if number != reading.number:
            shift = min(max(reading.at, self._read_at), now) - reading.at
            self._shifts[rank] = reading.number, shift
        if not shift:
            return reading
        return replace(reading, at=reading.at + shift, starts={name: at + shift for name, at in reading.starts.items()})

    def last_times(self, now: float) -> dict[int, float]:
        """Return when each worker last reported progress or a phase of its start, by local rank."""
        progress = {rank: reading.at for rank, reading in self.read(now).items()}
        data = {rank: os.pread(file, FILE_BYTES, 0) for rank, file in enumerate(self._files)}
        starts = {rank: _starts(each) for rank, each in data.items() if len(each) == FILE_BYTES}
        phases = {rank: max(min(at, now) for at in times.values()) for rank, times in starts.items() if times}
        return phases | progress

    def summary(self, now: float) -> Progress | None:
        """Return the progress of all workers together."""
        readings = self.read(now)
        self._pace.look(readings)
        return summary(self._round, readings.values(), self._pace, now, self.spawned_at)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _create() -> int:
    file = memfd_create("node-agent-progress")
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
            return _reading(record, _starts(data), _resumed_step(data)) if _is_possible(record) else None
    return None


def _is_possible(record: tuple[int | float, ...]) -> bool:
    """Return whether a worker can have written this record. A script that overwrites the memory must not harm the
    agent.
    """
    _, step, checkpoint_step, kind, at, *spent = record
    seconds = (at, *spent[1::3], *spent[2::3])
    are_numbers = all(isfinite(each) and each >= 0 for each in seconds)
    return are_numbers and step <= LARGEST and checkpoint_step <= LARGEST and kind < len(KINDS)


def _starts(data: bytes) -> dict[str, float]:
    times = zip(PHASES, STARTS.unpack_from(data, STARTS_AT), strict=True)
    return {phase: at for phase, at in times if isfinite(at) and at > 0}


def _resumed_step(data: bytes) -> int | None:
    (number,) = RESUMED.unpack_from(data, RESUMED_AT)
    return int(number) - 1 if 0 < number <= LARGEST + 1 else None


def _reading(record: tuple[int | float, ...], starts: dict[str, float], resumed_step: int | None) -> Reading:
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
        starts=starts,
        resumed_step=resumed_step,
    )
