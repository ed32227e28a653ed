"""Which of a round's failures is its root: the one that the round's end is blamed on.

The first one reported, unless it is a consequence (what its worker wrote says that another worker was gone) and one
that is none is reported for the same round: then that one. Two of a kind keep the order in which they were reported.

A consequence alone does not end a run at once: its cause is on its way, as another node's report or as the loss of that
node. The run waits for it for a moment; a loss then makes the restart free, as always.
"""

from rdzv_protocol.messages import Failure

from rdzv_server.core import restart_budget
from rdzv_server.core.run import FailureRecord, Run

CAUSE_WINDOW_S = 1.0
"""How long a run without restarts left waits for what a consequence follows from."""


def root(known: FailureRecord | None, new: FailureRecord) -> FailureRecord:
    """Of two failures of one round, the one to blame."""
    if known is None or (known.failure.consequence and not new.failure.consequence):
        return new
    return known


def awaits_cause(run: Run, failure: Failure) -> bool:
    """Whether the cause of this failure, the last one reported, may still be reported."""
    is_fatal = restart_budget.is_fatal(run, failure.exit_code)
    return failure.consequence and not is_fatal and len(run.running) > len(run.failed)
