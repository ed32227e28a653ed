"""An agent whose node is checked before it joins and after a failure."""

import pytest
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent import words
from node_agent.kernel.core.effects import (
    CheckNode,
    Exit,
    Level,
    Log,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    NodeChecked,
)
from tests.unit.node_agent.kernel.core.steps import (
    AFTER_ELSEWHERE,
    DRAIN_DONE,
    FAILED,
    NODE_UNFIT,
    RUNS,
    SIGTERM,
    SIGTERM_REPORT,
    START_AGAIN,
    check_actions,
    errs,
    fails,
    gone,
    happens,
    passes,
    signalled,
    told,
)
from tests.unit.node_agent.story import (
    LEASE_S,
    a_failure,
    drain,
    finish,
    join,
    leave,
    poll,
    stop,
)

FIT, UNFIT_CHECK = happens(NodeChecked()), "node a is unfit: --check disk says so"
unfit = happens(NodeChecked(UNFIT_CHECK))
CHECKED_RUN = [FIT, RUNS]
TOLD_UNFIT = [join("a.1", unfit=UNFIT_CHECK), leave(reason=UNFIT_CHECK, unfit=True)]
UNFIT_SAID = [errs(UNFIT_CHECK), WriteFailureReport(UNFIT_CHECK), Exit(NODE_UNFIT)]
OWN_END = finish(succeeded=False, failure=a_failure())
# fmt: off
CHECKS = {  # the events of an agent whose node is checked, and its actions at the last one
    "a node is checked before it joins": ([], [CheckNode()]),
    "and joins when it is fit": ([FIT], [join("a.1", after_round=0)]),
    "an unfit node takes no part, and the agent reports it": ([unfit], [*TOLD_UNFIT, *UNFIT_SAID]),
    "the server is not missed meanwhile": ([passes(300.0)], []),
    "a signal ends the wait": ([signalled()], [*SIGTERM, SIGTERM_REPORT, Exit(START_AGAIN)]),
    "it is checked again when its workers have stopped": ([*CHECKED_RUN, told(stop(1)), gone], [CheckNode()]),
    "the server hears meanwhile that it lives":
        ([*CHECKED_RUN, told(stop(1)), gone, told(stop(1), revision=2), passes(LEASE_S / HOLDS_PER_LEASE)],
         [poll(revision=2, hold=False)]),
    "and when it is fit it joins":
        ([*CHECKED_RUN, told(stop(1)), gone, told(stop(1), revision=2), FIT], [join(after_round=1)]),
    "a worker's failure has it checked at once": ([*CHECKED_RUN, fails, gone], [CheckNode(after_failure=True)]),
    "an unfit one tells the server why it leaves":
        ([*CHECKED_RUN, fails, gone, unfit], [leave(reason=UNFIT_CHECK, unfit=True), *UNFIT_SAID]),
    "a run that ends over this node's worker has it checked before the exit":
        ([*CHECKED_RUN, fails, told(OWN_END), gone], [CheckNode(after_failure=True)]),
    "whose code says that it is unfit":
        ([*CHECKED_RUN, fails, told(OWN_END), gone, unfit],
         [Log(words.leaving.error(UNFIT_CHECK), Level.ERROR, "node_unfit"), Exit(NODE_UNFIT)]),
    "or how the run ended": ([*CHECKED_RUN, fails, told(OWN_END), gone, FIT], [Exit(1)]),
    "a signal is not kept waiting for that": ([*CHECKED_RUN, fails, told(OWN_END), gone, signalled()], [Exit(1)]),
    "a run that ends over another node's does not": ([*CHECKED_RUN, told(FAILED), gone], [Exit(1)]),
    "a drained node is not checked":
        ([*CHECKED_RUN, told(drain()), gone], [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),
    "a node that has run nothing since need not be checked again":
        ([FIT, told(stop(1, AFTER_ELSEWHERE))],
         [Log(words.progress.round_over(1, AFTER_ELSEWHERE), event="round_opened"), join(after_round=1)]),
}
# fmt: on


@pytest.mark.parametrize(("events", "does"), CHECKS.values(), ids=CHECKS)
def test_actions_of_an_agent_whose_node_is_checked(events, does):
    check_actions(events, does, checks=True)
