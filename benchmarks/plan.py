"""How often, and of whom, samples are taken."""

from dataclasses import dataclass

from benchmarks.launchers import (
    STOCK,
    TORCHRUN_ETCD,
    TORCHRUN_LEAST_TIMERS,
    TORCHRUN_OWN_STORE,
    Launcher,
    Torchrun,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asks for, and what this machine has."""

    repeat: int
    """Samples at most."""
    torchrun: bool = True
    """Whether torchrun is measured too."""
    no_etcd: str = ""
    """Why torchrun's etcd-v2 backend cannot run; empty if it can."""

    def torchruns(self, *, least_timers: bool = False) -> list[Launcher]:
        """The forms of torchrun that can run here."""
        forms: list[Torchrun] = [STOCK, TORCHRUN_OWN_STORE]
        forms += [] if self.no_etcd else [TORCHRUN_ETCD]
        forms += [TORCHRUN_LEAST_TIMERS] if least_timers else []
        return [*forms] if self.torchrun else []
