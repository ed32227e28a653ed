"""Several policies conclude facts from one message: all are recorded, in any order of the policies."""

from itertools import permutations
from typing import Any, ClassVar

import pytest
from rdzv_protocol.messages import Progress

from rdzv_server.core.events import LeaseRenewed, PolicyFact
from rdzv_server.core.kernel.policy import NoSigns, Policies, Policy, Rule, Rules
from rdzv_server.core.kernel.run import PolicyState
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.policies.time_ledger import TimeLedger
from tests.support.scenario import Scenario, durable, replayed
from tests.support.stories import play


class Counted(PolicyState):
    times: int = 0


class OneTold(PolicyFact, frozen=True):
    times: int


class OtherTold(PolicyFact, frozen=True):
    times: int


def counts(kind: Any, of: str) -> type[Policy[Counted, NoSigns]]:
    """Return a policy that concludes a fact of this kind from each progress report."""

    class Counts(Policy[Counted, NoSigns]):
        name = of
        State = Counted

        def progressed(self, agent_id: str, progress: Progress, now: float) -> Any:
            return kind(self.state.times + 1)

        def _told(self, fact: Any, now: float) -> None:
            self.state.times = fact.times

        rules: ClassVar[Rules] = {kind: Rule(apply=_told, may_end_round=False)}

    return Counts


ONE, OTHER = counts(OneTold, "one"), counts(OtherTold, "other")


@pytest.mark.parametrize("policies", [*permutations((ONE, OTHER))], ids=lambda policies: policies[0].name)
def test_each_policy_that_concludes_a_fact_from_progress_has_it_recorded(policies: Any) -> None:
    run = Scenario("1", policies=policies)
    play(run, "join a; tell a highest_step=1; tell a highest_step=2")
    told = [record.fact for record in run.records if isinstance(record.fact, PolicyFact)]
    assert sorted(told, key=repr) == [OneTold(1), OneTold(2), OtherTold(1), OtherTold(2)]
    assert durable(replayed(run.created, run.records, policies=policies)) == durable(run.run)


STORY = (
    "join a b; 5s; tell a highest_step=1 step_s=1; 20s; tell a highest_step=20 checkpoint_step=9 checkpoint_s=2; 9s; "
    "fail a; 3s; join a; 20s; tell a highest_step=12 step_s=1; 30s; tell a highest_step=40 checkpoint_step=39; 4s; stop"
)


def test_the_order_of_the_policies_does_not_matter() -> None:
    run, other = Scenario("1:2", max_restarts=3), Scenario("1:2", max_restarts=3, policies=POLICIES[::-1])
    for each in (run, other):
        play(each, STORY)
        assert each.stage.is_end
    assert run.events == other.events
    assert dict(durable(run.run)["policies"]) == dict(durable(other.run)["policies"])
    assert sorted(map(repr, run.records)) == sorted(map(repr, other.records))


class Soon(Policy[PolicyState, NoSigns]):
    """Policy that wants to look at the run a second after the first report."""

    name = "soon"
    look_at: float | None = None

    def progressed(self, agent_id: str, progress: Progress, now: float) -> None:
        self.look_at = self.look_at or now + 1.0

    def deadline(self) -> float | None:
        return self.look_at


@pytest.mark.parametrize("policies", [(TimeLedger,), (Soon,)], ids=["a fact", "a deadline"])
def test_a_report_only_renews_a_lease_unless_a_policy_concludes_something_from_it(policies: Policies) -> None:
    run = Scenario("2", policies=policies)
    play(run, "join a b; 5s")
    heard = LeaseRenewed("a", Progress(round=1, highest_step=1))
    assert not run.machine.renew(heard, run.now)
    run.handle(heard)
    assert run.machine.renew(heard, run.now)
    assert run.machine.deadline == run.machine.next_deadline()
