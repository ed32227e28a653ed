"""Nodes that a server remembers, and when it excludes one, as stories of many runs."""

import itertools
from typing import Any

import pytest
from rdzv_protocol.messages import Start, Stop, Wait
from rdzv_protocol.node_conditions import condition

from rdzv_server.core import journals
from rdzv_server.core.effects import EmitEvent
from rdzv_server.core.events import (
    EXCLUDER,
    AgentDisconnected,
    LeaseRenewed,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeUncordoned,
    RoundCompleted,
)
from rdzv_server.core.node_facts import NodeBlamed
from rdzv_server.core.node_history import (
    MOST_INCIDENTS,
    MOST_NODES,
    MOST_OF_A_NODE,
    UNFIT,
    Blame,
    Incident,
    NodeHistory,
)
from rdzv_server.core.nodes.cordons import MOST_CORDONS, MOST_EXCLUSIONS
from rdzv_server.core.nodes.exclusion import TOGETHER_S, ExclusionPolicy
from rdzv_server.storage.record_codec import pack, unpack
from rdzv_server.words import completion, operations
from rdzv_server.words import nodes as words
from tests.support.scenario import SERVER_ADDR, WALL_AT, ManyRuns, a_failure, a_join, settings_of

POLICY = ExclusionPolicy(after=3, window_s=3_600.0, for_s=600.0)


class Cluster(ManyRuns):
    """Runs that start and end on the same nodes. Agents have their node's name and a number."""

    def __init__(self, exclusion: ExclusionPolicy | None = POLICY) -> None:
        super().__init__(exclusion)
        self.numbers = itertools.count(1)

    def run(self, run_id: str, *nodes: str, nnodes: str = "", **settings: Any) -> dict[str, str]:
        """Start a run of exactly these nodes. Return its agents, by node."""
        agents = {node: f"{node}.{next(self.numbers)}" for node in nodes}
        for node, agent in agents.items():
            self.join(agent, run_id, node=node, settings=settings_of(nnodes or str(len(nodes)), **settings))
        return agents

    def joins_with_limited_token(self, agent: str, run_id: str, node: str, settings: Any, **more: Any) -> None:
        """An agent joins with a token that is limited to some runs."""
        join = a_join(agent, run_id=run_id, node=node, explicit_run_id=True, settings=settings, **more)
        self.handle(run_id, NodeJoined(join, SERVER_ADDR, is_scoped=True))

    def falls_silent(self, *nodes: str, heard: dict[str, dict[str, str]]) -> None:
        """Let 100 s pass in which these nodes are silent and the others are heard. `heard`: agents of each run."""
        for _ in range(10):
            self.passes(10.0)
            for run_id, agents in heard.items():
                for node, agent in agents.items():
                    if node not in nodes:
                        self.handle(run_id, LeaseRenewed(agent))

    @property
    def excluded(self) -> dict[str, str]:
        return {node: cordon.reason for node, cordon in self.registry.nodes.state.cordons.items() if cordon.excludes}


def kept_out(reason: str) -> str:
    """Return the sentence for an agent of node b in a run that excludes it."""
    return completion.standby_kept_out("b", reason, excluded=True)


def test_a_node_blamed_by_several_runs_is_excluded_for_a_time() -> None:
    cluster = Cluster()
    for number in range(3):
        assert cluster.excluded == {}
        cluster.fails(cluster.run(f"run{number}", "a", "b")["b"], f"run{number}")
        cluster.stalls(60.0)
    reason = words.blamed(3, 3_600.0, 3)
    assert cluster.excluded == {"b": words.last_blamed(reason, a_failure("b").sentence)}
    agents = cluster.run("next", "a", "b", nnodes="1:2", lease_s=5_000.0)
    assert cluster.directive(agents["b"], "next") == Wait(
        reason=kept_out(reason), remaining_s=540.0, ending="uncordoned", excluded=True
    )
    cluster.stalls(600.0)
    assert cluster.excluded == {}
    assert not getattr(cluster.directive(agents["b"], "next"), "excluded", False)


def test_only_the_blaming_run_sees_what_its_workers_wrote() -> None:
    cluster = Cluster()
    settings = {"nnodes": "1:2", "lease_s": 5_000.0, "max_restarts": 3}
    blaming, beside = cluster.run("blaming", "a", "b", **settings), cluster.run("beside", "b", **settings)
    cluster.fails(blaming["b"], "blaming", blame="node", error="a secret")
    told = {effect.event.run_id: effect.event.reason for effect in cluster.effects if isinstance(effect, EmitEvent)}
    assert "a secret" in told["blaming"]
    assert told["beside"] == operations.excluded("b", POLICY.for_s, words.HARDWARE_FAILED)
    for known in (cluster, cluster.restarted()):
        agents = known.run("later", "b", **settings)
        assert known.directive(agents["b"], "later").reason == kept_out(words.HARDWARE_FAILED)
        known.join("b.99", "blaming", node="b", settings=settings_of("1:2", lease_s=5_000.0, max_restarts=3))
        assert "a secret" in known.directive("b.99", "blaming").reason
    assert beside


def test_blame_by_a_run_with_a_limited_token_counts_only_in_that_run() -> None:
    cluster = Cluster()
    settings = settings_of("1:2", lease_s=5_000.0, max_restarts=9)
    for run_id, node in (("theirs", "b"), ("ours", "b"), ("ours", "c")):
        cluster.joins_with_limited_token(f"{node}.{run_id}", run_id, node, settings)
    cluster.joins_with_limited_token("forged", "ours", "b", settings, unfit="no GPU")
    assert cluster.excluded == {}, "no other run learns of it"
    for known in (cluster, cluster.restarted()):
        assert not known.directive("b.theirs", "theirs").excluded
        known.joins_with_limited_token("b.9", "ours", "b", settings)
        assert known.directive("b.9", "ours").reason == kept_out("node b is unfit: no GPU")
        known.stalls(POLICY.for_s)
        assert not getattr(known.directive("b.9", "ours"), "excluded", False), "its time is over"


def test_a_limited_tokens_run_counts_what_it_blames_a_node_for_by_itself() -> None:
    cluster = Cluster()
    settings = settings_of("1", lease_s=5_000.0, max_restarts=9)
    cluster.fails(cluster.run("other", "b")["b"], "other")
    cluster.joins_with_limited_token("b.0", "ours", "b", settings)
    for round in (1, 2, 3):
        assert not getattr(cluster.directive("b.0", "ours"), "excluded", False)
        cluster.fails("b.0", "ours", round=round)
        cluster = cluster.restarted()
        cluster.joins_with_limited_token("b.0", "ours", "b", settings, after_round=round)
    reason = words.last_blamed(words.blamed(3, 3_600.0, 1), a_failure("b").sentence)
    assert cluster.directive("b.0", "ours").reason == kept_out(reason)
    assert [each.fault for each in cluster.registry.nodes.state.history.by_node["b"]] == ["failed"], "of the other run"


def test_the_count_begins_again_after_an_exclusion_and_after_an_operators_word() -> None:
    for pardon in (lambda cluster: cluster.stalls(600.0), lambda cluster: cluster.handle(None, UNCORDON)):
        cluster = Cluster()
        for number in range(5):
            cluster.fails(cluster.run(f"run{number}", "b")["b"], f"run{number}")
            if number == 2:
                assert cluster.excluded
                pardon(cluster)
        assert cluster.excluded == {}
        cluster.fails(cluster.run("run5", "b")["b"], "run5")
        assert "b" in cluster.excluded


UNCORDON = NodeUncordoned("its fan is new", "admin", node_id="b", wall_at=WALL_AT)


def test_old_blame_no_longer_counts() -> None:
    cluster = Cluster()
    for number in range(9):
        cluster.fails(cluster.run(f"run{number}", "b")["b"], f"run{number}")
        cluster.stalls(1_801.0)
    assert cluster.excluded == {}


def test_without_a_policy_the_server_does_not_remember_or_exclude_nodes() -> None:
    cluster = Cluster(None)
    for number in range(9):
        cluster.fails(cluster.run(f"run{number}", "b")["b"], f"run{number}", blame="node")
    assert cluster.registry.nodes.state.cordons == {}
    assert len(cluster.registry.nodes.state.history.by_node["b"]) == 9


def test_all_of_it_survives_the_server_also_when_its_runs_are_forgotten() -> None:
    cluster = Cluster()
    for number in range(2):
        cluster.fails(cluster.run(f"run{number}", "b")["b"], f"run{number}")
    again = cluster.restarted()
    assert again.registry.nodes.state.history.by_node == cluster.registry.nodes.state.history.by_node
    (kept,) = again.registry.snapshot(journals.NODES, again.now)
    last = Cluster()
    last.registry.replay(unpack(*journals.NODES, 0.0, *pack(kept)))
    last.fails(last.run("run", "b")["b"], "run")
    assert "b" in last.excluded


EVIDENCE: dict[str, Any] = {
    "hardware that failed": {"blame": "node", "hint": "drain it"},
    "a check that found it unfit": None,
}


@pytest.mark.parametrize("evidence", EVIDENCE.values(), ids=EVIDENCE)
def test_evidence_against_a_node_excludes_it_at_once_and_a_standby_takes_its_place(evidence: Any) -> None:
    cluster = Cluster()
    agents = cluster.run("run", "a", "b", max_restarts=3)
    cluster.join("c.9", "run", node="c", settings=settings_of("2", max_restarts=3))
    if evidence:
        cluster.fails(agents["b"], "run", **evidence)
    else:
        cluster.handle("run", NodeLeft(agents["b"], "node b is unfit: no GPU 3", unfit=True))
    assert isinstance(cluster.directive(agents["a"], "run"), Stop)
    told = [effect.event for effect in cluster.effects if isinstance(effect, EmitEvent)]
    assert [(each.node_id, each.by) for each in told if each.kind == "node_cordoned"] == [("b", "rdzv-server")]
    if evidence:
        cluster.join(agents["b"], "run", node="b", after_round=1, settings=settings_of("2", max_restarts=3))
        assert cluster.directive(agents["b"], "run").excluded
    cluster.join(agents["a"], "run", node="a", after_round=1, settings=settings_of("2", max_restarts=3))
    assert isinstance(cluster.directive("c.9", "run"), Start)


def test_a_full_disk_counts_like_any_failure_since_a_script_may_have_filled_it() -> None:
    """Otherwise a script that fills /tmp would have one node after the other excluded."""
    cluster = Cluster()
    for number in range(3):
        assert cluster.excluded == {}
        agents = cluster.run(f"run{number}", "a", "b")
        cluster.fails(agents["b"], f"run{number}", blame="node", hint="clean up (DiskFull, temporary)")
        cluster.stalls(60.0)
    assert [*cluster.excluded] == ["b"]
    assert words.HARDWARE_FAILED not in cluster.excluded["b"]


def test_a_second_agent_of_the_node_that_is_excluded_does_not_take_the_seat_in_the_same_moment() -> None:
    cluster = Cluster(ExclusionPolicy(1, 600.0, 60.0))
    agents = cluster.run("run", "a", lease_s=10.0)
    cluster.stalls(2.0)
    cluster.join("a.9", "run", node="a", settings=settings_of("1", lease_s=10.0))
    cluster.handle("run", LeaseRenewed("a.9"))
    cluster.stalls(9.0)  # the first one has not been heard
    assert agents["a"] not in cluster.registry.machine_of("run", "a.9").run.agents
    assert cluster.directive("a.9", "run").excluded
    cluster.handle("run", LeaseRenewed("a.9"))
    for _ in range(60):
        cluster.handle("run", LeaseRenewed("a.9"))
        cluster.stalls(1.0)
    assert isinstance(cluster.directive("a.9", "run"), Start), "and when its time is over it does"


def test_a_failure_that_the_program_caused_does_not_blame_its_node() -> None:
    cluster = Cluster()
    for number in range(9):
        cluster.fails(cluster.run(f"run{number}", "b")["b"], f"run{number}", blame="program")
    assert cluster.registry.nodes.state.history.by_node == {}


def test_a_failure_that_follows_from_another_workers_end_does_not_blame_a_node() -> None:
    cluster = Cluster()
    agents = cluster.run("run", "a", "b", max_restarts=1)
    cluster.fails(agents["a"], "run", consequence=True)
    cluster.fails(agents["b"], "run")
    assert list(cluster.registry.nodes.state.history.by_node) == ["b"]


def test_a_failure_that_is_reported_after_another_node_was_lost_does_not_blame_a_node() -> None:
    """Its worker lost that node, even if its output does not say so."""
    cluster = Cluster()
    agents = cluster.run("run", "a", "b", nnodes="1:2", max_restarts=1)
    cluster.handle("run", NodeLeft(agents["b"], "SIGTERM"))
    cluster.fails(agents["a"], "run")
    assert not cluster.registry.nodes.state.history.by_node


def test_nodes_that_are_lost_one_by_one_are_blamed_and_those_lost_together_are_not() -> None:
    cluster = Cluster()
    names = [f"n{number}" for number in range(6)]
    for number in range(4):
        cluster.run(f"run{number}", *names, nnodes="1:6")
        cluster.stalls(20.0)  # every lease ends: the switch fails, or this server's own network
    assert cluster.registry.nodes.state.history.by_node == {}
    for number in range(4, 8):
        agents = cluster.run(f"run{number}", "a", "b", nnodes="1:2", lease_s=20.0)
        cluster.falls_silent("b", heard={f"run{number}": agents})
    assert list(cluster.excluded) == ["b"]


def test_the_first_of_two_nodes_that_are_lost_together_is_not_excluded_either() -> None:
    for is_cut in (False, True):
        cluster = Cluster(ExclusionPolicy(after=1, window_s=3_600.0, for_s=600.0))
        agents = cluster.run("run", "a", "b", "c", nnodes="1:3", lease_s=20.0)
        for node in "ab" if is_cut else "":
            cluster.handle("run", AgentDisconnected(agents[node]))
        for _ in range(3):
            cluster.passes(10.0)
            cluster.handle("run", LeaseRenewed(agents["c"]))
        (run,) = cluster.registry.runs()
        assert list(run.agents) == [agents["c"]]
        assert cluster.registry.nodes.state.history.by_node == {}


def test_nodes_of_three_runs_that_vanish_together_are_not_to_blame_and_two_are() -> None:
    for nodes, is_lost in (("ab", True), ("abd", False)):
        cluster = Cluster(ExclusionPolicy(after=1, window_s=3_600.0, for_s=600.0))
        of_runs = {node: cluster.run(f"run of {node}", node, f"w{node}", nnodes="1:2") for node in nodes}
        for node, agents in of_runs.items():
            cluster.handle(f"run of {node}", AgentDisconnected(agents[node]))
        cluster.passes(1.0)
        assert [len(run.agents) for run in cluster.registry.runs()] == [2 - is_lost] * len(nodes)
        assert bool(cluster.excluded) is is_lost


@pytest.mark.parametrize(("after", "is_excluded"), [(3, True), (4, False)])
def test_a_node_that_is_excluded_does_not_end_its_run_for_lack_of_progress(after: int, is_excluded: bool) -> None:
    cluster = Cluster(ExclusionPolicy(after=after, window_s=3_600.0, for_s=600.0))
    limits: dict[str, Any] = {"max_restarts_without_progress": 2, "lease_s": 1_000.0}
    agents = cluster.run("run", "a", "b", nnodes="2", **limits)
    (run,) = cluster.registry.runs()
    for number in range(1, 4):
        cluster.handle("run", AgentDisconnected(agents["a"]))
        cluster.passes(5.0)
        if not run.stage.is_end:
            cluster.join(agents["b"], "run", node="b", after_round=number, settings=settings_of("2", **limits))
            agents |= cluster.run("run", "a", nnodes="2", **limits)
    assert run.no_progress is not is_excluded and ("a" in cluster.excluded) is is_excluded


@pytest.mark.parametrize(("nodes", "apart_s"), [("abd", 4.0), ("ab", 4.0), ("abd", TOGETHER_S + 1.0)])
def test_the_exclusions_of_nodes_that_were_lost_shortly_before_others_end(nodes: str, apart_s: float) -> None:
    """A switch dies, and the runs of its nodes notice it one after another."""
    cluster = Cluster(ExclusionPolicy(after=2, window_s=3_600.0, for_s=600.0))
    of_runs = {
        node: cluster.run(f"run of {node}", node, f"w{node}", nnodes="1:2", lease_s=5_000.0, max_restarts=3)
        for node in nodes
    }
    for node in nodes:
        cluster.fails(cluster.run(f"before {node}", node)[node], f"before {node}")
    for number, (node, agents) in enumerate(of_runs.items()):
        cluster.handle(f"run of {node}", AgentDisconnected(agents[node]))
        cluster.passes(1.0)
        assert number == 2 or node in cluster.excluded, "it cannot be known yet"
        cluster.passes(apart_s)
    are_together = len(nodes) == 3 and apart_s < TOGETHER_S
    assert list(cluster.excluded) == ([] if are_together else [*nodes])


FULL, NO_GPU = "no room (DiskFull, temporary)", "no GPU 3 (GpuMissing, permanent)"


def found_unfit(cluster: Cluster, node: str, finding: str, run_id: str = "run") -> None:
    """Let an agent of this node join, whose check has found the node unfit."""
    cluster.join(f"{node}.{next(cluster.numbers)}", run_id, node=node, settings=settings_of("9"), unfit=finding)


def test_a_temporary_condition_counts_as_one_fault_and_a_permanent_one_excludes_at_once() -> None:
    cluster = Cluster()
    found_unfit(cluster, "a", NO_GPU)
    assert list(cluster.excluded) == ["a"]
    for number in range(3):
        assert "b" not in cluster.excluded
        found_unfit(cluster, "b", FULL, f"run{number}")
        cluster.passes(TOGETHER_S + 1.0)
    assert condition(cluster.excluded["b"]) == ("DiskFull", "temporary"), "--on-exclude gets both"


@pytest.mark.parametrize("finding", [FULL, NO_GPU, "node {0} is unfit: 'diag' rejected it: {0}: no answer in 1{1}.5 s"])
@pytest.mark.parametrize("apart_s", [0.0, 14.0])
def test_nodes_that_checks_find_unfit_together_are_not_to_blame(finding: str, apart_s: float) -> None:
    cluster = Cluster(ExclusionPolicy(after=1, window_s=3_600.0, for_s=600.0))
    cluster.join("fit", "run", node="fit", settings=settings_of("9", lease_s=5_000.0))
    for number, node in enumerate("abcd"):
        found_unfit(cluster, node, finding.format(node, number))
        assert list(cluster.excluded) == ([*"ab"[: number + 1]] if number < 2 else [])
        cluster = cluster.restarted()
        cluster.passes(apart_s)
    for node in "abcd":
        cluster.join(f"{node}.fit", "next", node=node, settings=settings_of("4"))
    assert isinstance(cluster.directive("a.fit", "next"), Start)


@pytest.mark.parametrize("apart_s", [1.0, TOGETHER_S + 1.0])
@pytest.mark.parametrize("has_others", [False, True])
def test_two_nodes_that_are_found_unfit_together_are_not_blamed_if_they_are_the_whole_run(
    has_others: bool, apart_s: float
) -> None:
    """For example, the shared disk hangs: no node of the run shows the opposite."""
    cluster = Cluster()
    agents = cluster.run("run", *("abc" if has_others else "ab"), lease_s=5_000.0)
    for node in "ab":
        cluster.handle("run", NodeLeft(agents[node], f"node {node} is unfit: {NO_GPU}", unfit=True))
        cluster.passes(apart_s)
    is_shared = not has_others and apart_s < TOGETHER_S
    assert list(cluster.excluded) == ([] if is_shared else ["a", "b"])


def test_the_end_of_a_shared_exclusion_is_an_event_of_the_run_without_an_operator() -> None:
    cluster = Cluster()
    waiting = cluster.run("other", "a", "x", nnodes="3")
    cluster.run("run", "fit", nnodes="9")
    for node in "abc":
        found_unfit(cluster, node, NO_GPU)
    told = [effect.event for effect in cluster.effects if isinstance(effect, EmitEvent)]
    ended = {(each.run_id, each.node_id): each for each in told if each.kind == "node_uncordoned"}
    assert ended["other", "a"].reason == operations.uncordoned("a", words.SHARED, by_operator=False)
    assert not ended["other", "a"].by
    assert not getattr(cluster.directive(waiting["a"], "other"), "excluded", False)


@pytest.mark.parametrize(
    "findings", [(NO_GPU, FULL, "its fan (FanBroken, permanent)"), ("its fan", "its link", "its disk")]
)
def test_nodes_that_are_unfit_in_different_ways_are_to_blame(findings: tuple[str, ...]) -> None:
    cluster = Cluster(ExclusionPolicy(after=1, window_s=3_600.0, for_s=600.0))
    for node, finding in zip("abc", findings, strict=True):
        found_unfit(cluster, node, finding)
    assert list(cluster.excluded) == ["a", "b", "c"]


def test_the_end_of_a_shared_exclusion_leaves_other_exclusions_and_cordons_alone() -> None:
    cluster = Cluster()
    cluster.fails(cluster.run("before", "a")["a"], "before", blame="node")
    cluster.passes(1.0)
    cluster.handle(None, NodeCordoned("its fan", "admin", node_id="b"))
    for node in "abc":
        found_unfit(cluster, node, NO_GPU)
        cluster.passes(1.0)
    assert list(cluster.registry.nodes.state.cordons) == ["a", "b"]


def test_a_limited_tokens_run_lifts_the_exclusions_of_a_shared_cause_by_itself() -> None:
    cluster = Cluster()
    settings = settings_of("9", lease_s=5_000.0)
    for node in "abc":
        cluster.joins_with_limited_token(f"{node}.1", "ours", node, settings, unfit=NO_GPU)
        cluster = cluster.restarted()
        cluster.passes(1.0)
    assert cluster.registry.machine_of("ours", "a.1").run.cordons == {}


def test_exclusion_does_not_replace_an_operators_cordon() -> None:
    cluster = Cluster()
    agents = cluster.run("run", "a", "b", max_restarts=3)
    cluster.handle(None, NodeCordoned("its fan", "admin", node_id="b"))
    cluster.fails(agents["b"], "run", blame="node")
    (cordon,) = cluster.registry.nodes.state.cordons.values()
    assert (cordon.by, cordon.until) == ("admin", None)


def test_a_server_that_may_have_no_more_cordons_continues() -> None:
    cluster = Cluster()
    for number in range(MOST_CORDONS):
        cluster.registry.handle(None, NodeCordoned("x", "me", node_id=f"n{number}"), 0.0)
    cluster.fails(cluster.run("run", "b")["b"], "run", blame="node")
    assert cluster.excluded == {}


def test_exclusions_leave_room_for_the_cordons_of_operators() -> None:
    """An agent can make up nodes, and have each of them excluded."""
    cluster = Cluster()
    for number in range(MOST_EXCLUSIONS - 1):
        cluster.registry.handle(None, NodeCordoned("x", EXCLUDER, node_id=f"n{number}"), 0.0)
    for node in ("last", "one more"):
        cluster.fails(cluster.run(f"run of {node}", node)[node], f"run of {node}", blame="node")
    assert len(cluster.excluded) == MOST_EXCLUSIONS and "one more" not in cluster.excluded
    for number in range(MOST_CORDONS - MOST_EXCLUSIONS):
        cluster.registry.handle(None, NodeCordoned("x", "me", node_id=f"bad{number}"), 0.0)


def test_the_memory_is_bounded_so_that_a_snapshot_is_one_value_of_etcd() -> None:
    history = NodeHistory()
    for number in range(3 * MOST_INCIDENTS):
        history.note(f"{number % (2 * MOST_NODES):0256}", Incident(number, "failed", "r" * 256, "x" * 999, WALL_AT))
    for number in range(3 * MOST_OF_A_NODE):
        history.note("again and again", Incident(number, "lost", "r", "x"))
    assert len(history.by_node) <= MOST_NODES
    assert len(history.by_node["again and again"]) == MOST_OF_A_NODE
    assert sum(map(len, history.by_node.values())) <= MOST_INCIDENTS
    cluster = Cluster()
    for number in range(MOST_CORDONS):
        cluster.registry.handle(None, NodeCordoned("x" * 1_024, "rdzv-server", node_id=f"{number:0256}"), 0.0)
    cluster.registry.nodes.state.history = history
    (snapshot,) = cluster.registry.snapshot(journals.NODES, 0.0)
    assert len(pack(snapshot)[1]) < 1.25 * (1 << 20), "etcd takes 1.5 MiB"


def test_a_node_that_another_run_loses_while_it_is_excluded_is_excluded_once() -> None:
    cluster = Cluster(ExclusionPolicy(after=2, window_s=3_600.0, for_s=600.0))
    cluster.fails(cluster.run("before", "a", "b")["b"], "before")
    runs = {run_id: cluster.run(run_id, "a", "b", nnodes="1:2", lease_s=30.0) for run_id in ("one", "two")}
    cluster.falls_silent("b", heard=runs)
    journal = [record.fact for record in cluster.records if record.run_id == journals.NODES[0]]
    assert [type(fact) for fact in journal] == [NodeBlamed, NodeBlamed, NodeBlamed, NodeCordoned]
    assert [record.run_id for record in cluster.records if isinstance(record.fact, NodeCordoned)].count("two") == 1


def test_nodes_that_are_lost_together_by_different_runs_are_not_to_blame() -> None:
    cluster = Cluster(ExclusionPolicy(after=2, window_s=3_600.0, for_s=600.0))
    for node in ("a", "b", "c"):
        cluster.fails(cluster.run(f"before {node}", node)[node], f"before {node}")
    runs = {f"of {node}": cluster.run(f"of {node}", node, f"w{node}", nnodes="1:2", lease_s=30.0) for node in "abc"}
    cluster.falls_silent("a", "b", "c", heard=runs)  # the rack that they share
    faults = [[each.fault for each in blames] for blames in cluster.registry.nodes.state.history.by_node.values()]
    assert faults == [["failed", "lost"]] * 3
    assert cluster.excluded == {}


def test_evidence_counts_though_another_agent_of_the_node_is_lost_in_the_same_instant() -> None:
    cluster = Cluster()
    settings = settings_of("1:2", lease_s=30.0, max_restarts=3)
    for agent in ("b.1", "b.2"):
        cluster.join(agent, "run", node="b", settings=settings)
    for _ in range(2):
        cluster.stalls(10.0)
        cluster.handle("run", LeaseRenewed("b.1"))
    cluster.now += 15.0  # the lease of b.2 has ended, but the server was busy
    cluster.fails("b.1", "run", blame="node", hint="drain it")
    blamed = [each.fault for each in cluster.registry.nodes.state.history.by_node["b"]]
    assert blamed == ["hardware", "lost", "excluded"]
    assert list(cluster.excluded) == ["b"]


def test_no_round_completes_with_a_node_that_is_excluded_in_the_same_instant() -> None:
    cluster = Cluster(ExclusionPolicy(after=1, window_s=600.0, for_s=60.0))
    settings = settings_of("2", lease_s=10.0, max_restarts=3)
    cluster.run("run", "a", "b", lease_s=10.0, max_restarts=3)
    cluster.stalls(2.0)
    for node in ("a", "b", "c"):
        cluster.join(f"{node}.9", "run", node=node, settings=settings)
        cluster.handle("run", LeaseRenewed(f"{node}.9"))
    cluster.stalls(8.5)  # the first agents of a and b have not been heard
    assert list(cluster.excluded) == ["a", "b"]
    rounds = [record.at for record in cluster.records if isinstance(record.fact, RoundCompleted)]
    assert rounds == [0.0], "b and c would be enough, but b is excluded as well"


def test_a_node_whose_exclusion_ends_in_the_instant_in_which_a_round_completes_takes_part() -> None:
    cluster = Cluster()
    cluster.fails(cluster.run("before", "b")["b"], "before", blame="node")
    agents = cluster.run("next", "a", "b", nnodes="1:2", lease_s=5_000.0, last_call_timeout_s=POLICY.for_s)
    assert cluster.directive(agents["b"], "next").excluded
    cluster.stalls(POLICY.for_s)
    assert [cluster.directive(agent, "next").assignment.round for agent in agents.values()] == [1, 1]


def test_every_blame_is_recorded_before_its_exclusion() -> None:
    cluster = Cluster()
    cluster.fails(cluster.run("run", "a", "b", max_restarts=3)["b"], "run", blame="node")
    journal = [type(record.fact) for record in cluster.records if record.run_id == journals.NODES[0]]
    assert journal == [NodeBlamed, NodeCordoned]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["a", "n/", "n ", "(AaAa", "0"])
def test_the_time_for_the_words_of_a_check_grows_only_with_their_length(part: str) -> None:
    """An agent chooses the words. A pattern that tries each word from each of its letters would take hours."""
    assert Blame("n", UNFIT, f"node n is unfit: {part * 10**6}").condition


def test_numbers_and_the_nodes_name_do_not_make_findings_different() -> None:
    def condition_of(node_id: str, reason: str) -> str:
        return Blame(node_id, UNFIT, reason).condition

    one = condition_of("gpu-a", "node gpu-a is unfit: /data-3: 17 of 20 GB are used (gpu-a:/dev/sda1)")
    assert one == condition_of("b", "node b is unfit: /data-4: 18 of 20 GB are used (b:/dev/sdb2)")
    assert one != condition_of("b", "node b is unfit: /data-4: 18 of 20 inodes are used (b:/dev/sdb2)")
