"""What a process holds."""

from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory in MB, and open file descriptors."""

    rss_mb: float
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(round(pages * PAGE_BYTES / 1e6, 1), len(list(Path(f"/proc/{pid}/fd").iterdir())))
