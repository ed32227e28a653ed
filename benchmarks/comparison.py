"""The rows side by side: a line for each thing that is measured, a column for each launcher."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.launchers import (
    OURS,
    STOCK,
    TORCHRUN_ETCD,
    TORCHRUN_LEAST_TIMERS,
    TORCHRUN_OWN_STORE,
)
from benchmarks.results import FLOOR, Row

TORCHRUNS = tuple(form.name for form in (STOCK, TORCHRUN_OWN_STORE, TORCHRUN_ETCD, TORCHRUN_LEAST_TIMERS))


@dataclass(slots=True)
class Line:
    """Rows of one measurement. `rows`: by subject."""

    title: str
    rows: dict[str, Row] = field(default_factory=dict)
    floor: Row | None = None

    @property
    def ours(self) -> Row | None:
        return self.rows.get(OURS)

    @property
    def is_compared(self) -> bool:
        """Whether ours stands beside something: a bar, torchrun or the floor."""
        return bool(self.floor or self.torchruns or (self.ours and self.ours.bar is not None))

    @property
    def torchruns(self) -> list[Row]:
        return [self.rows[name] for name in TORCHRUNS if name in self.rows]


def lines(rows: Iterable[Row]) -> list[Line]:
    """A subject that has no column has a line of its own, in which it stands as ours."""
    found: dict[str, Line] = {}
    for row in rows:
        if row.subject.startswith(FLOOR):
            found.setdefault(row.measurement, Line(row.measurement)).floor = row
        elif row.subject in (OURS, *TORCHRUNS):
            found.setdefault(row.measurement, Line(row.measurement)).rows[row.subject] = row
        else:
            title = f"{row.measurement}: {row.subject}"
            found.setdefault(title, Line(title)).rows[OURS] = row
    return list(found.values())
