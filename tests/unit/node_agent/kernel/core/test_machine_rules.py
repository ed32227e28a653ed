"""An agent with rules about failures, or in a run with fatal exit codes."""

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
    Unauthorized,
)
from rdzv_protocol.settings import RequestedSettings

from node_agent import words
from node_agent.kernel.core.effects import (
    Exit,
    JudgeFailure,
    Level,
    Log,
)
from node_agent.kernel.core.events import (
    Crashed,
    FailureJudged,
    WorkerFailed,
)
from tests.unit.node_agent.kernel.core.steps import (
    DRAIN_DONE,
    FAILED,
    FAILED_SAID,
    REFUSED,
    RUNS,
    START_AGAIN,
    STOP,
    check_actions,
    fails,
    gone,
    happens,
    refused,
    reported,
    signalled,
    told,
)
from tests.unit.node_agent.story import (
    Story,
    a_failure,
    drain,
    join,
    leave,
    report,
    stop,
)

FATAL = a_failure(verdict="fatal", rule="boom")
RETRY = a_failure(verdict="retry", rule="store")
MATCH = JudgeFailure(1, a_failure())
fatal, retry = (happens(FailureJudged(1, failure)) for failure in (FATAL, RETRY))
# fmt: off
RULES = {  # the events of an agent with rules about failures, and its actions at the last one
    "a failure is matched while the siblings are stopped": ([RUNS, fails], [FAILED_SAID, MATCH, STOP]),
    **{f"and reported with the verdict: {failure.verdict}":
        ([RUNS, fails, happens(FailureJudged(1, failure))], [report(failure=failure)])
       for failure in (FATAL, RETRY, a_failure())},
    "it is reported once": ([RUNS, fails, fatal, fatal], []),
    "another round's verdict is none": ([RUNS, fails, happens(FailureJudged(2, FATAL))], []),

    # a stop, a drain or a signal comes while it is matched
    "a stop does not lose the verdict": ([RUNS, fails, told(stop(1)), gone, retry], [report(failure=RETRY)]),
    "and a join follows its report":
        ([RUNS, fails, told(stop(1)), told(stop(1)), gone, retry, reported], [join(after_round=1)]),
    "nor does a join that is due overtake the match": ([RUNS, fails, told(stop(1)), told(stop(1)), gone], []),
    "a drain does not lose the verdict": ([RUNS, fails, told(drain()), fatal], [report(failure=FATAL)]),
    "a drained agent leaves when it is there":
        ([RUNS, fails, told(drain()), gone, fatal],
         [report(failure=FATAL), leave(reason="drained"), Exit(START_AGAIN)]),
    "not before": ([RUNS, fails, told(drain()), gone], [DRAIN_DONE]),
    "a signal does not lose the verdict, and the leave follows its report":
        ([RUNS, fails, signalled(), gone, fatal], [report(failure=FATAL), leave(), Exit(START_AGAIN)]),
    "the workers of an agent that was signalled are not waited for longer":
        ([RUNS, fails, signalled(), fatal], [report(failure=FATAL), leave()]),

    # or had come just before
    "a failure that is heard of after a stop is matched": ([RUNS, told(stop(1)), fails], [MATCH]),
    "it counts if it is fatal":
        ([RUNS, told(stop(1)), fails, fatal], [FAILED_SAID, report(failure=FATAL)]),
    "and not if it is not": ([RUNS, told(stop(1)), fails, retry], []),
    "then the agent joins at once":
        ([RUNS, told(stop(1)), told(stop(1)), fails, gone, retry], [join(after_round=1)]),
    "one that is heard of after a drain counts if it is fatal":
        ([RUNS, told(drain()), fails, gone, fatal],
         [FAILED_SAID, report(failure=FATAL), leave(reason="drained"), Exit(START_AGAIN)]),
    "an agent that has told that it leaves reports nothing": ([RUNS, signalled(), fails], []),

    # the verdict no longer matters
    "the end of the run waits for no verdict": ([RUNS, fails, told(FAILED), gone], [Exit(1)]),
    "nor does the server's refusal": ([RUNS, fails, refused(Unauthorized("no")), gone], [Exit(REFUSED)]),
    "nor a crash": ([RUNS, fails, happens(Crashed("boom")), gone], [Exit(1)]),
    "an agent that crashes while it leaves says so":
        ([RUNS, fails, signalled(), gone, happens(Crashed("boom"))], [leave(), Exit(1)]),
    "a fenced agent joins again without it":
        ([RUNS, fails, refused(AgentFenced("gone")), gone], [join("a.2", returning=True)]),
    "and does not report it": ([RUNS, fails, refused(AgentFenced("gone")), fatal], []),
    "nor one that it hears of later": ([RUNS, refused(AgentFenced("gone")), fails], []),
}
# fmt: on


FATAL_42 = {"settings": RequestedSettings(fatal_exit_codes=(42,))}
BY_42 = a_failure(exit_code=42, cause="exit code 42")
SAID_42 = Log(words.progress.worker_failed(3, 1, 77, "a", "exit code 42", ""), Level.ERROR, "workers_failed")
fails_with_42 = happens(WorkerFailed(1, BY_42))
SUFFERED = a_failure(rank=2, local_rank=0, pid=76, consequence=True)
suffered_before = happens(WorkerFailed(1, SUFFERED, before_stop=True))
SUFFERED_SAID = Log(words.progress.worker_failed(2, 0, 76, "a", "exit code 5", ""), Level.ERROR, "workers_failed")
failed_before = happens(WorkerFailed(1, a_failure(), before_stop=True))
# fmt: off
BY_CODE = {  # the events of an agent in whose run exit code 42 is fatal, and its actions at the last one
    "it is reported": ([RUNS, fails_with_42], [SAID_42, report(failure=BY_42), STOP]),
    "also if it is heard of after a stop": ([RUNS, told(stop(1)), fails_with_42], [SAID_42, report(failure=BY_42)]),
    "and a join follows its report":
        ([RUNS, told(stop(1)), told(stop(1)), fails_with_42, gone, reported], [join(after_round=1, **FATAL_42)]),
    "not before": ([RUNS, told(stop(1)), told(stop(1)), fails_with_42, gone], []),
    "also after a drain": ([RUNS, told(drain()), fails_with_42], [SAID_42, report(failure=BY_42)]),
    "a fenced agent reports nothing of the workers that it had":
        ([RUNS, refused(AgentFenced("gone")), fails_with_42], []),
    "another exit code after a stop may be the stop's doing": ([RUNS, told(stop(1)), fails], []),
    "a failure that came before the stop is reported":
        ([RUNS, told(stop(1)), failed_before], [FAILED_SAID, report(failure=a_failure())]),
    "one that follows from the reported failure is logged": ([RUNS, fails_with_42, suffered_before], [SUFFERED_SAID]),
    "not after a drain, which explains it": ([RUNS, told(drain()), failed_before], []),
    "nor by an agent that leaves": ([RUNS, signalled(), failed_before], []),
}
# fmt: on


@pytest.mark.parametrize(("events", "does"), RULES.values(), ids=RULES)
def test_actions_of_an_agent_with_rules(events, does):
    check_actions(events, does, judges_failures=True)


@pytest.mark.parametrize(("events", "does"), BY_CODE.values(), ids=BY_CODE)
def test_actions_at_a_fatal_exit_code(events, does):
    check_actions(events, does, **FATAL_42)


@pytest.mark.parametrize("verdict", ["count", "retry"])
def test_a_fatal_exit_code_after_a_stop_counts_even_if_the_rules_say_otherwise(verdict):
    agent, judged = Story(**FATAL_42, judges_failures=True), replace(BY_42, verdict=verdict)
    for event in (RUNS, told(stop(1)), fails_with_42, happens(FailureJudged(1, judged))):
        event(agent)
    assert agent.effects == [SAID_42, report(failure=judged)]
