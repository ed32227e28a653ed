"""A running round without a heard agent: the server concludes nothing, and what ends it."""

import pytest
from rdzv_protocol.errors import RunFailed, ServerUnavailable, UnknownRun
from rdzv_protocol.messages import Finish, Start

from rdzv_server.core import journals
from rdzv_server.core.events import AgentDisconnected, Incarnation, LeaseRenewed, RunForgotten, RunStopped
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.kernel.silent_runs import ASKED_AGAIN_S, GIVES_PLACE_S, MOST_S, WANTED_S
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.runs.registry import Registry
from rdzv_server.core.views import run_view
from rdzv_server.words import attempts, completion, runs
from rdzv_server.words import silent_runs as words
from tests.support.message_search import has_message, pattern
from tests.support.scenario import OPERATOR, RETENTION_S, ManyRuns, running, settings_of
from tests.support.stories import check, stories

LOST_10 = words.awaited(10)
HEARD_B = words.heard_again(60, "b", has_others=True)
HOUR = "3600s"


@stories({
    "no node is lost, no restart is charged, workers continue, and the run warns": (
        "2 lease_s=10", f"join a b; 10s; {HOUR}",
        {"start": "a b", "ledger": "", "faults": "", "kinds node": "node_joined node_joined", "told warning": LOST_10},
    ),
    "the same with one agent whose connection closes": (
        "1 lease_s=10", f"join a; disconnect a; {HOUR}", {"start": "a", "faults": "", "told warning": LOST_10},
        "renew a; 4s; renew a; 4s", {"start": "a", "ledger": ""},
    ),
    "and with connections that close one by one, in the silence": (
        "3 lease_s=10", f"join a b c; 9s; disconnect a; 2s; disconnect b; 2s; disconnect c; {HOUR}; renew c; 1s",
        {"start": "a b c"}, "renew b; 1s; renew a; 3s; renew a b c; 5s; renew a b c; 5s",
        {"start": "a b c", "faults": "", "kinds node_lost": ""},
    ),
    "when all are back nothing has happened": (
        "2 lease_s=10", "join a b; 60s; renew b; 9s; renew a b; 5s; renew a b; 5s; renew a b",
        {"start": "a b", "kinds node_lost": "", "told warning": f"{LOST_10}; {HEARD_B}"},
    ),
    "the first that is heard lets the leases of the others count from then": (
        "1:2 lease_s=10", "join a b; 60s; renew b; 5s; renew b; 4.9s; renew b", {"start": "a b"},
        "0.1s", {"agents": "b", "faults": "", "stop": "b"},
    ),
    "an agent that is heard, and falls silent again, starts the wait again": (
        "2 lease_s=10", f"join a b; 60s; renew b; {HOUR}", {"start": "a b", "kinds node_lost": ""},
    ),
    "a silent agent gets one such lease, also if silence comes again": (
        "1:2 lease_s=10", "join a b; 60s; renew b; 7s; renew b; 3s; renew b", {"agents": "b"},
    ),
    "an agent that was heard in between gets another one": (
        "2 lease_s=10", "join a b; 60s; renew a b; 60s; renew b; 9s; renew a b", {"start": "a b"},
    ),
    "a standby that is heard is a witness": (
        "2 lease_s=10", "join a b c; 6s; renew c; 4s", {"agents": "c", "faults": ""},
    ),
    "after a day the run fails, and says why": (
        "2 lease_s=10", f"join a b; {MOST_S - 1}s", {"stage": "running"},
        "1s", {"stage": "failed", "end": words.not_heard(MOST_S), "ledger": ""},
    ),
    "an agent that has left is no witness": (
        "2 lease_s=10", "join a b c; 5.9s; renew c; 5s; leave c; renew a; 1s; renew b",
        {"start": "a b", "kinds node_lost": ""},
    ),
    # new agents
    "a new agent of one of its nodes replaces its predecessor at once": (
        "1 lease_s=10", "join a; 60s; join a2 node=a", {"ranks": "a2", "ledger": "node_lost", "faults": ""},
    ),
    "a job that is queued again on the same nodes waits for none of its old agents": (
        "2 lease_s=10", "join a b; 60s; join a2 node=a; 0.5s; join b2 node=b", {"ranks": "a2 b2", "faults": ""},
    ),
    "nor does one without restarts": (
        "2 lease_s=10 max_restarts=0", "join a b; 60s; join b2 node=b; join a2 node=a",
        {"ranks": "b2 a2", "ledger": "node_lost"},
    ),
    "on other nodes it waits until as many new agents are there": (
        "2 lease_s=10", "join a b; 60s; join c; 0.5s", {"start": "a b", "wait": "c"},
        "join d", {"ranks": "c d", "ledger": "node_lost", "faults": ""},
    ),
    "or for one lease": (
        "1:2 lease_s=10 scale_up='manual'", "join a b; 60s; join c; 5s; renew c; 4.9s; renew c", {"start": "a b"},
        "0.1s", {"agents": "c", "faults": ""}, "4.9s; renew c; 5s", {"ranks": "c"},
    ),
    "a new agent of another node takes the place of a single one at once": (
        "1 lease_s=10", "join a; 60s; join b", {"ranks": "b", "ledger": "node_lost", "faults": ""},
    ),
    "but not before the old one's lease is over": (
        "1 lease_s=10", "join a; 7s; join b", {"start": "a"}, "2.9s; renew b", {"start": "a"}, "0.1s", {"ranks": "b"},
    ),
    "a participant that joins again and nodes that stand by are no new agents: the others keep their leases": (
        "2 lease_s=10 max_restarts=3", "join a b c d; 60s; renew b c d; fail b; join b; 9.9s; renew b c d",
        {"agents": "a b c d", "stage": "forming"}, "0.1s", {"ranks": "c b", "faults": "b:failed"},
    ),
    "nor are a participant and a new agent together": (
        "2 lease_s=10 max_restarts=3", "join a b; 60s; renew b; fail b; join b; join c; 9.9s; renew b c",
        {"agents": "a b c", "stage": "forming"}, "0.1s", {"ranks": "c b", "faults": "b:failed"},
    ),
    "an old agent that is heard after a new one keeps its place": (
        "2 lease_s=10", "join a b; 60s; join c; 3s; renew a b; 1s; join d; 1s; renew a b c d",
        {"start": "a b", "wait": "c d"},
    ),
    "a node rank is taken over at once": (
        "1 lease_s=10", "join a node_rank=0; 60s; join b node_rank=0", {"ranks": "b"},
    ),
    # no other judgement
    "a hang that was suspected before is not judged": (
        "2 lease_s=10", f"join a b; suspect a 0; disconnect a; disconnect b; {HOUR}", {"start": "a b", "ledger": ""},
    ),
    "it is judged when agents are heard again": (
        "2 lease_s=10 max_restarts=3", "join a b; suspect a 0; 60s; renew a b; 1s", {"start": "a b"},
        "judge; 2s", {"kinds hang_found": "hang_found", "ledger": "", "stop": "a b"},
    ),
    "and not if they take it back": (
        "2 lease_s=10 max_restarts=3", "join a b; suspect a 0; 60s; renew b; suspect a; 3s; renew a b; 3s",
        {"start": "a b", "kinds hang_found": ""},
    ),
    "an arrival is not admitted": (
        "1:3 lease_s=10 scale_up_window_s=20", f"join a; 5s; join b; {HOUR}", {"start": "a", "wait": "b", "ledger": ""},
    ),
    "a failure that is reported counts": (
        "2 lease_s=10 max_restarts=3", "join a b; 60s; fail a; join a; renew b; join b", {"ledger": "worker_failure!"},
    ),
    # operators
    "an operator who restarts the run gives its silent agents up": (
        "2 lease_s=10 join_timeout_s=600", "join a b; 60s; restart_run",
        {"agents": "", "stage": "forming", "faults": ""}, "join c d", {"ranks": "c d"},
    ),
    "and the run fails if none joins": (
        "2 lease_s=10 join_timeout_s=600", "join a b; 60s; restart_run; 600s", {"stage": "failed"},
    ),
    "one who stops it ends it": ("2 lease_s=10", "join a b; 60s; stop", {"stage": "failed", "finish": "a b"}),
    "a node that is drained does not keep the others from a new round": (
        "1:3 lease_s=10", "join a b; 60s; drain b; join a2 node=a; 6s", {"ranks": "a2"},
    ),
    # the ledger
    "silence that ends with a loss was no training": (
        "1:2 lease_s=10",
        "join a b; 20s; tell a highest_step=9 step_s=0.1; renew b; 60s; renew b; 5s; renew b; 5s; renew b",
        {"agents": "b", "parts": "starting 20, detecting 70"},
    ),
    "nor is one that new agents, an operator or the end of the wait ends": (
        "1 lease_s=10", "join a; 20s; tell a highest_step=9 step_s=0.1; 60s; join a2 node=a",
        {"parts": "starting 20, detecting 60"}, "20s; tell a2 highest_step=9 step_s=0.1; 60s; stop",
        {"parts": "starting 40, detecting 120"},
    ),
    "silence after which the agents are back counts as training": (
        "1 lease_s=10", "join a; 20s; tell a highest_step=9 step_s=0.1; 60s; tell a highest_step=609 step_s=0.1",
        {"parts": "training 60, starting 20"},
    ),
    # the server's restart
    "a restarted server knows it, and warns once": (
        "2 lease_s=10", "join a b; 60s; restart; 60s; restart_from_snapshot; 60s",
        {"start": "a b", "told warning": LOST_10}, "join a2 node=a; join b2 node=b", {"ranks": "a2 b2"},
    ),
    "the day continues": ("2 lease_s=10", f"join a b; 60s; restart; {MOST_S - 60}s", {"stage": "failed"}),
})  # fmt: skip
def test_a_run_whose_agents_are_all_silent_waits(story):
    check(story)


def test_the_run_reports_the_silence_while_it_lasts():
    run = running("2", "a", "b", lease_s=10)
    run.passes(60.0)
    assert completion.no_agent_heard(MOST_S) in run_view.reason(run.run, run.now)
    run.renews("a")
    assert completion.no_agent_heard(MOST_S) not in run_view.reason(run.run, run.now)


# Attempts.


class Server(ManyRuns):
    """A server with one run, `run`, whose nodes each have an agent of the same name."""

    def begin(self, *nodes: str, explicit: bool = True, **settings: object) -> None:
        for node in nodes:
            self.join(node, explicit=explicit, settings=settings_of(str(len(nodes)), lease_s=10.0, **settings))

    def begin_again(self, *nodes: str, explicit: bool = True, **settings: object) -> None:
        """New agents of these nodes join a run of this number of nodes."""
        for node in nodes:
            asked = settings_of(str(len(nodes)), lease_s=10.0, **settings)
            self.join(f"new {node}", node=node, explicit=explicit, settings=asked)

    @property
    def stages(self) -> list[Stage]:
        return [run.stage for run in self.registry.runs()]


def test_an_agent_that_is_started_again_without_a_run_id_begins_a_new_attempt_at_once():
    for wait_s in (1.0, 60.0):
        server = Server()
        server.begin("a", explicit=False)
        server.handle("run", AgentDisconnected("a"))
        server.passes(wait_s)
        server.begin_again("a", explicit=False)
        assert server.stages == [Stage.FAILED, Stage.RUNNING]
        assert isinstance(server.directive("new a"), Start)


def test_a_new_agent_of_another_node_ends_the_silence_if_the_run_had_a_free_seat():
    server = Server()
    server.begin("a", explicit=False)
    server.passes(60.0)
    server.begin_again("b", explicit=False)
    assert server.stages == [Stage.FAILED, Stage.RUNNING]


def test_a_new_node_does_not_begin_an_attempt_beside_several_silent_nodes():
    server = Server()
    server.begin("a", "b", explicit=False)
    server.passes(60.0)
    server.begin_again("c", "d", explicit=False)
    assert server.stages == [Stage.RUNNING]
    assert isinstance(server.directive("new d"), Start)


def test_agents_with_other_settings_begin_a_new_attempt_in_place_of_silent_ones():
    server = Server()
    server.begin("a", "b", max_restarts=3)
    server.passes(9.0)
    with pytest.raises(Exception, match="--max-restarts is 3"):
        server.begin_again("c", "d", max_restarts=5)
    server.passes(51.0)
    server.begin_again("c", "d", max_restarts=5)
    assert server.stages == [Stage.FAILED, Stage.RUNNING]
    assert server.registry.runs()[0].end_reason == runs.superseded(has_agents=True)


def test_a_silent_run_can_be_stopped_and_forgotten():
    server = Server()
    server.begin("a", "b")
    server.passes(60.0)
    server.handle("run", RunStopped(**OPERATOR))
    server.handle("run", RunForgotten(run_id="run", **OPERATOR))
    server.passes(10.0)
    assert server.stages == []
    with pytest.raises(UnknownRun):
        server.handle("run", RunStopped(**OPERATOR))


def test_silent_runs_do_not_blame_nodes():
    server = Server(ExclusionPolicy(after=1, window_s=3_600.0, for_s=600.0))
    server.begin("a", "b")
    server.passes(60.0)
    server.begin_again("a", "b")
    assert server.stages == [Stage.RUNNING]
    assert not server.registry.nodes.state.cordons and not server.registry.nodes.state.history.by_node


def test_a_silent_run_does_not_affect_other_runs():
    server = Server()
    server.begin("a", "b")
    for agent in ("c", "d"):
        server.join(agent, "other", settings=settings_of("1:2", lease_s=10.0))
    for _ in range(3):
        server.passes(4.0)
        server.handle("other", LeaseRenewed("d"))
    assert [list(run.agents) for run in server.registry.runs()] == [["a", "b"], ["d"]]


def test_a_grace_ends_on_time_if_its_witness_is_found_later():
    """The server hears agents in a quick way if only a fresh lease follows."""
    run = running("1:2", "a", "b", lease_s=4, disconnect_grace_s=1)
    run.passes(1.5)
    run.handle(AgentDisconnected("b"))
    run.passes(0.1)
    heard = LeaseRenewed("a")
    if not run.machine.renew(heard, run.now):
        run.handle(heard)
    assert run.machine.deadline == 2.5


# A run that makes room for another.

GIVES = attempts.gives_place("silent", WANTED_S)
NO_ROOM = attempts.full_of_runs(2, attempts.WHEN_ONE_HAS_ENDED)


@pytest.fixture
def full() -> ManyRuns:
    """Return a server with two runs, its maximum."""
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_runs=2)
    server.join("a", "silent", settings=settings_of("1"))
    server.join("b", "other", settings=settings_of("1"))
    return server


def passes(server: ManyRuns, seconds: float, *heard: tuple[str, str]) -> None:
    """Let time pass while these agents of these runs are heard."""
    for _ in range(round(seconds / 5)):
        server.passes(5.0)
        for agent, run_id in heard:
            server.handle(run_id, LeaseRenewed(agent))


def wants_place(server: ManyRuns, says: str) -> None:
    with pytest.raises(ServerUnavailable, match=pattern(says)):
        server.join("c", "new", settings=settings_of("1"))


def stages(server: ManyRuns) -> dict[str, Stage]:
    return {run_id: stage for run_id, _, stage in server.attempts()}


def test_the_run_that_has_been_silent_for_longest_gives_its_place_to_a_new_one(full):
    full.handle("silent", AgentDisconnected("a"))
    passes(full, 60, ("b", "other"))
    full.handle("other", AgentDisconnected("b"))
    passes(full, GIVES_PLACE_S)
    wants_place(full, attempts.full_of_runs(2, GIVES))
    passes(full, WANTED_S)
    full.join("c", "new", settings=settings_of("1"))
    assert stages(full) == {"silent": Stage.FAILED, "other": Stage.RUNNING, "new": Stage.RUNNING}
    (run,) = full.registry.attempts_of("silent")
    assert run.end_reason == words.gave_place(375, to_agents=False)
    assert isinstance(full.directive("a", "silent"), Finish), "the directive of its agent when it is back"


def test_an_agent_that_returns_after_its_run_is_forgotten_gets_its_outcome(full):
    full.handle("silent", AgentDisconnected("a"))
    passes(full, GIVES_PLACE_S, ("b", "other"))
    wants_place(full, GIVES)
    passes(full, WANTED_S, ("b", "other"))
    full.join("c", "new", settings=settings_of("1"))
    passes(full, 60, ("b", "other"), ("c", "new"))
    assert set(stages(full)) == {"other", "new"}, "it takes no place for long"
    again = Registry(RETENTION_S, max_runs=2)
    for fact in full.registry.snapshot(journals.NUMBERS, full.now):
        again.replay(fact)
    registry_says = runs.ended("silent", Stage.FAILED, words.gave_place(GIVES_PLACE_S + WANTED_S, to_agents=False))
    for registry in (full.registry, again):
        full.registry = registry
        with pytest.raises(RunFailed, match=f"^{pattern(registry_says)}$"):
            full.join("a", "silent", returning=True, attempt=1)


def test_a_run_with_an_agent_that_may_be_alive_keeps_its_place(full):
    passes(full, 2 * GIVES_PLACE_S, ("b", "other"))
    for _ in range(3):
        wants_place(full, NO_ROOM)
        passes(full, WANTED_S, ("b", "other"))
    assert stages(full)["silent"] is Stage.RUNNING, "its connection is open"
    passes(full, ASKED_AGAIN_S + 5, ("b", "other"))
    full.handle("silent", AgentDisconnected("a"))
    wants_place(full, GIVES)
    full.handle("silent", LeaseRenewed("a"))
    passes(full, WANTED_S, ("b", "other"))
    wants_place(full, NO_ROOM)


def test_a_full_server_admits_new_runs_one_after_another(full):
    full.handle("silent", AgentDisconnected("a"))
    passes(full, GIVES_PLACE_S, ("b", "other"))
    wants_place(full, GIVES)
    passes(full, ASKED_AGAIN_S + 5, ("b", "other"))
    wants_place(full, GIVES)
    assert stages(full)["silent"] is Stage.RUNNING


def test_after_a_server_restart_silent_agents_get_the_full_time_to_return(full):
    full.handle("silent", AgentDisconnected("a"))
    passes(full, GIVES_PLACE_S, ("b", "other"))
    wants_place(full, GIVES)
    registry = Registry(RETENTION_S, max_runs=2)
    for record in full.records:
        registry.replay(record)
    registry.restart(full.now, Incarnation())
    full.registry = registry
    full.handle("other", LeaseRenewed("b"))
    wants_place(full, NO_ROOM)
    passes(full, GIVES_PLACE_S, ("b", "other"))
    wants_place(full, GIVES)
    passes(full, WANTED_S, ("b", "other"))
    full.join("c", "new", settings=settings_of("1"))
    assert stages(full)["silent"] is Stage.FAILED


# A run that makes room for other runs' agents.


@pytest.fixture
def crowded() -> ManyRuns:
    """Return a server with its maximum of agents: two of a run that falls silent, and one of another."""
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_agents=3)
    for agent in ("a1", "a2"):
        server.join(agent, "silent", settings=settings_of("2"))
    server.join("b", "other", settings=settings_of("1:2"))
    return server


def falls_silent(server: ManyRuns) -> None:
    for agent in ("a1", "a2"):
        server.handle("silent", AgentDisconnected(agent))
    passes(server, GIVES_PLACE_S + 10, ("b", "other"))


@pytest.mark.parametrize("run_id", ["new", "other"])
def test_a_silent_run_gives_the_places_of_its_agents_to_new_ones(crowded: ManyRuns, run_id: str) -> None:
    no_room = pattern(attempts.full_of_agents(3, 3))
    settings = settings_of("1:2" if run_id == "other" else "1")
    with pytest.raises(ServerUnavailable, match=no_room):
        crowded.join("c", run_id, settings=settings)
    falls_silent(crowded)
    with pytest.raises(ServerUnavailable, match=pattern(attempts.full_of_agents(3, 3, GIVES))):
        crowded.join("c", run_id, settings=settings)
    passes(crowded, WANTED_S, ("b", "other"))
    crowded.join("c", run_id, settings=settings)
    assert stages(crowded)["silent"] is Stage.FAILED
    (run,) = crowded.registry.attempts_of("silent")
    assert has_message(run.end_reason, words.gave_place, for_s=325, to_agents=True)
    crowded.join("d", "third", settings=settings_of("1"))  # the silent run had two agents
    with pytest.raises(ServerUnavailable, match=no_room):
        crowded.join("e", "fourth", settings=settings_of("1"))
    again = Registry(RETENTION_S, max_agents=3)
    for record in crowded.records:
        again.replay(record)
    crowded.registry = again
    with pytest.raises(ServerUnavailable, match=no_room):
        crowded.join("e", "fourth", settings=settings_of("1"))


def test_a_silent_run_does_not_give_its_place_to_a_newcomer_of_its_own(crowded: ManyRuns) -> None:
    crowded.registry = Registry(RETENTION_S, max_agents=2)
    for agent in ("a1", "a2"):
        crowded.join(agent, "silent", settings=settings_of("1:3"))
    passes(crowded, 60, ("a1", "silent"), ("a2", "silent"))
    assert stages(crowded) == {"silent": Stage.RUNNING}
    for agent in ("a1", "a2"):
        crowded.handle("silent", AgentDisconnected(agent))
    crowded.passes(GIVES_PLACE_S + 10)
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match=pattern(attempts.full_of_agents(2, 2))):
            crowded.join("a3", "silent", settings=settings_of("1:3"))
        crowded.passes(WANTED_S)
