"""Actions on nodes, for all runs: existing and future ones."""

import pytest
from rdzv_protocol.errors import ServerUnavailable, UnknownNode
from rdzv_protocol.messages import Drain, Start
from rdzv_protocol.words import run as run_words

from rdzv_server.core import journals
from rdzv_server.core.events import LeaseRenewed, NodeCordoned, NodeDrained, NodeUncordoned, RunForgotten
from rdzv_server.core.nodes.cordons import MOST_CORDONS
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.record_codec import pack, unpack
from rdzv_server.words import completion, costs, operations
from rdzv_server.words import nodes as words
from tests.support.message_search import pattern
from tests.support.scenario import RETENTION_S, ManyRuns, settings_of


@pytest.fixture
def server():
    return ManyRuns()


def on_node(server, kind, node_id, **more):
    server.handle(None, kind(by="me", node_id=node_id, **more))


def test_a_drained_node_leaves_all_its_runs_and_stands_by_in_later_ones(server):
    for run_id in ("one", "two"):
        server.join("a", run_id, settings=settings_of("2"))
        server.join("b", run_id, node="b", settings=settings_of("2"))
    on_node(server, NodeDrained, "a", deadline_s=60.0, request_id="1")
    assert {type(server.directive("a", run_id)) for run_id in ("one", "two")} == {Drain}
    server.join("a", "three")
    assert server.directive("a", "three").reason == completion.standby_kept_out("a", "", excluded=False)
    stands_still = costs.stands_still(1, 600.0)
    waits = operations.waiting_runs([costs.of_run(run_id, stands_still) for run_id in ("one", "two")], 0)
    for each in (server, server.restarted()):
        assert each.registry.answer_to(None, "1") == operations.drained("a", "", waits)


def test_the_answer_to_a_drain_names_no_run_that_has_enough_nodes(server):
    server.join("a", settings=settings_of("1"))
    server.join("b", node="b", settings=settings_of("1"))
    on_node(server, NodeDrained, "a", deadline_s=60.0, request_id="1")
    assert server.registry.answer_to(None, "1") == operations.drained("a", "")


def test_the_answer_to_a_cordon_names_the_runs_whose_next_restart_waits(server):
    for run_id, nodes in (("two", "2"), ("one", "1:2")):
        for node in "ab":
            server.join(f"{node}-{run_id}", run_id, node=node, settings=settings_of(nodes, last_call_timeout_s=0.0))
    server.passes(1.0)
    waits = operations.waiting_runs([costs.of_run("two", costs.stands_still_later(1, 600.0))], 0)
    on_node(server, NodeCordoned, "b", request_id="1")
    on_node(server, NodeCordoned, "b", request_id="2", reason="again")
    for each in (server, server.restarted()):
        assert each.registry.answer_to(None, "1") == operations.cordoned("b", None, "", waits)
        assert each.registry.answer_to(None, "2") == operations.cordoned("b", None, "again")


def test_a_cordon_and_its_time_survive_a_restart_and_its_end_comes_by_itself(server):
    on_node(server, NodeCordoned, "a", for_s=60.0, reason="burn-in")
    server.join("a", settings=settings_of("1", lease_s=1_000.0))
    server.passes(30.0)
    server = server.restarted()
    assert [cordon.reason for cordon in server.registry.nodes.state.cordons.values()] == ["burn-in"]
    standing_by = completion.standby_kept_out("a", "burn-in", excluded=False)
    assert server.directive("a").sentence == run_words.uncordoned_in(standing_by, 30.0)
    server.handle("run", LeaseRenewed("a"))
    server.passes(30.0)
    assert isinstance(server.directive("a"), Start)
    assert server.restarted().registry.nodes.state.cordons == {}


def test_requests_about_nodes_and_forgotten_runs_are_carried_out_once_also_after_a_restart(server):
    server.join("a")
    server.succeeds("a")
    server.passes(100.0)
    server.handle("run", RunForgotten(by="me", request_id="1", run_id="run"))
    on_node(server, NodeCordoned, "b", request_id="2")
    on_node(server, NodeUncordoned, "b", request_id="3")
    for again in (server, server.restarted()):
        before = len(again.records)
        again.handle("run", RunForgotten(by="me", request_id="1", run_id="run"))
        on_node(again, NodeCordoned, "b", request_id="2")
        assert len(again.records) == before and again.registry.nodes.state.cordons == {}
        assert again.registry.answer_to("run", "1") == "run run is forgotten"


def test_a_snapshot_of_the_cordons_replaces_their_records(server):
    for number in range(3):
        on_node(server, NodeCordoned, f"n{number}", request_id=str(number))
    on_node(server, NodeUncordoned, "n1")
    again = Registry(RETENTION_S)
    for record in server.registry.snapshot(journals.NODES, server.now):
        again.replay(unpack(record.run_id, record.attempt, record.at, *pack(record)))
    assert (again.nodes.state.cordons, again.nodes.state.answers) == (
        server.registry.nodes.state.cordons,
        server.registry.nodes.state.answers,
    )


def test_the_number_of_cordons_of_a_server_is_bounded(server):
    for number in range(MOST_CORDONS):
        server.registry.handle(None, NodeCordoned("x" * 1_024, "me", node_id=f"{number:0256}"), 0.0)
    with pytest.raises(ServerUnavailable, match=pattern(words.too_many_cordons(MOST_CORDONS))):
        on_node(server, NodeCordoned, "one more")
    on_node(server, NodeCordoned, f"{7:0256}", reason="again")
    (snapshot,) = server.registry.snapshot(journals.NODES, 0.0)
    assert len(pack(snapshot)[1]) < 1 << 20, "one value of etcd"


def test_only_a_node_that_is_known_can_be_drained(server):
    with pytest.raises(UnknownNode, match=pattern(words.unknown_node("x"))):
        on_node(server, NodeDrained, "x", deadline_s=1.0)
    server.registry.nodes.knows_all_runs = False
    on_node(server, NodeDrained, "x", deadline_s=1.0)
    assert list(server.registry.nodes.state.cordons) == ["x"]
