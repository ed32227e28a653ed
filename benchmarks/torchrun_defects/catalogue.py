"""The defects, in the order of the page."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.torchrun_defects.launchers import Launcher, NodeAgent, Torchrun
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.scenarios import (
    dead_node,
    intruder,
    last_call,
    leave,
    logs,
    one_crash,
    orphans,
    pet_standalone,
    rank_0,
    replacement,
    restart_count,
    scale_up,
    shutdown_timeout,
    spare,
)
from benchmarks.torchrun_defects.stage import Stage


@dataclass(frozen=True, slots=True)
class Defect:
    """`title` says what goes wrong under torchrun.

    `is_slow`: torchrun takes more than half a minute. `repeat`: more than once where it does not come every time, or
    not always alike. `depends_on_store`: torchrun also runs as it comes, where each round reuses the store of the
    first; else only without that.
    """

    name: str
    title: str
    observe: Callable[[Stage, Launcher], Observation]
    is_slow: bool = False
    repeat: int = 1
    depends_on_store: bool = False

    def launchers(self) -> list[Launcher]:
        as_it_comes = [Torchrun(shares_store=True)] if self.depends_on_store else []
        return [*as_it_comes, Torchrun(shares_store=False), NodeAgent()]


DEFECTS = (
    Defect("scale-up", "A node that arrives ends the run", scale_up.observe, is_slow=True, depends_on_store=True),
    Defect(
        "replacement",
        "A replacement for a lost node ends the run",
        replacement.observe,
        is_slow=True,
        depends_on_store=True,
    ),
    Defect(
        "one-crash",
        "One crash of a worker costs several restarts, or the run never recovers",
        one_crash.observe,
        is_slow=True,
        repeat=5,
        depends_on_store=True,
    ),
    Defect("restart-count", "The restart count differs between the nodes of one round", restart_count.observe),
    Defect("logs", "A membership change deletes the logs of the round before", logs.observe),
    Defect("dead-node", "A dead node goes unnoticed while the other workers are idle", dead_node.observe, is_slow=True),
    Defect("orphans", "Workers outlive their agent", orphans.observe),
    Defect("spare", "A spare node fails when the run succeeds", spare.observe, repeat=3),
    Defect("shutdown-timeout", "`--shutdown-timeout` is ignored on a restart", shutdown_timeout.observe, is_slow=True),
    Defect("last-call", "Every restart below the maximum waits the whole last call again", last_call.observe),
    Defect("leave", "A node that leaves is missed only when its keep-alives run out", leave.observe),
    Defect("rank-0", "Losing the node of rank 0 ends the run", rank_0.observe),
    Defect("intruder", "The rendezvous state is a pickle in a store that anybody may read and write", intruder.observe),
    Defect("pet-standalone", "`PET_STANDALONE=true` is a ValueError", pet_standalone.observe),
)
