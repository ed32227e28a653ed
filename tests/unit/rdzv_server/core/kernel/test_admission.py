"""Admission: which agents may join, which get a seat, and which replace another."""

from typing import Any

import pytest
from rdzv_protocol.errors import AgentFenced, MalformedMessage, ProtocolError, ServerUnavailable, SettingsConflict
from rdzv_protocol.messages import Finish, Wait
from rdzv_protocol.settings import RequestedSettings, RunSettings

from rdzv_server.core.kernel import admission
from rdzv_server.core.kernel.admission import MOST_NAMESAKES, RECENTLY_S
from rdzv_server.core.kernel.run import AgentState, Stage
from rdzv_server.words import admission as words
from rdzv_server.words import completion, losses, runs
from tests.support.message_search import has_message, pattern
from tests.support.scenario import Scenario, a_join, durable, replayed, running, settings_of
from tests.support.stories import check, stories

# Settings.


def test_the_first_agents_settings_become_the_runs():
    assert admission.settings_of(a_join("a", settings=settings_of("2:3", max_restarts=4))) == RunSettings(
        min_nodes=2, max_nodes=3, max_restarts=4
    )


def test_a_minimum_above_the_maximum_is_an_error():
    with pytest.raises(MalformedMessage, match=pattern(words.min_above_max, min_nodes=3, max_nodes=2)):
        admission.settings_of(a_join("a", settings=settings_of("3:2")))


def test_other_settings_are_refused_with_both_values():
    run = Scenario("2:3")
    with pytest.raises(SettingsConflict) as refusal:
        run.join("a", settings=settings_of("2:4", max_restarts=5))
    assert "--nnodes is 2:3 in the run, but 2:4 here; --max-restarts is 0 in the run, but 5 here" in str(refusal.value)
    assert "min_nodes" not in str(refusal.value)
    assert not run.run.agents


def test_an_agent_without_settings_takes_the_runs():
    run = Scenario("2")
    run.join("a", settings=settings_of("2"))
    run.join("b", settings=RequestedSettings())
    assert run.participants() == ["a", "b"]


def test_a_run_holds_no_more_agents_than_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(admission, "MOST_AGENTS", 2)
    run = Scenario("1:2")
    run.join("a", "b")
    with pytest.raises(ServerUnavailable, match=pattern(words.run_is_full, most=2)):
        run.join("c")


# Commands.


def test_a_node_that_runs_another_command_is_named_once_and_joins():
    run = Scenario("3")
    run.join("a", command="1")
    run.join("b", command="2")
    sentence = words.other_command("b", "a")
    assert run.announced() == [sentence] == [admission.differs(run.run, a_join("b", command="2"))]
    run.join("c")  # its command is unknown
    assert run.participants() == ["a", "b", "c"]
    run.restarts()
    assert admission.differs(run.run, a_join("b", command="2")) == sentence
    assert not any(admission.differs(run.run, run.run.agents[name].join) for name in "ac")


def test_commands_are_compared_with_the_next_one_after_the_first_is_gone():
    run = Scenario("3")
    run.join("a", command="1")
    run.leaves("a")
    run.join("b", command="2")
    assert run.run.command_of == "b" and not any(has_message(each, words.other_command) for each in run.announced())
    assert admission.differs(run.run, a_join("c", command="1")) == words.other_command("c", "b")


@pytest.mark.parametrize("size", ["1", "2", "1:2"], ids=["it is full", "it forms", "it has a free seat"])
def test_an_agent_with_another_program_gets_no_seat(size: str):
    run = Scenario(size)
    run.join("a", program="train.py")
    with pytest.raises(SettingsConflict) as refusal:
        run.join("b", program="eval.py")
    assert str(refusal.value) == words.other_program("run", "train.py", "a", "eval.py", "b")
    assert list(run.run.agents) == ["a"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"program": "node0.sh"}, {"program": "node1.sh"}),
        ({"program": "trainer.py", "role": "trainer"}, {"program": "reader.py", "role": "reader"}),
        ({"program": "train.py"}, {"program": ""}),
        ({"program": ""}, {"program": "train.py"}),
    ],
    ids=["they differ by a number", "of another role", "an agent that does not tell", "a first that does not tell"],
)
def test_programs_that_may_belong_to_one_run_take_part(first: dict[str, str], second: dict[str, str]):
    run = Scenario("2")
    run.join("a", **first)
    run.join("b", **second)
    assert run.participants() == ["a", "b"]


def test_a_corrected_program_takes_the_place_of_the_agent_that_is_gone():
    run = Scenario("1", disconnect_grace_s=60.0)
    run.join("a", program="trian.py")
    run.disconnects("a")
    run.join("a2", node="a", program="train.py")
    assert run.participants() == ["a2"]


@pytest.mark.parametrize("program", ["train.py", ""])
def test_an_agent_with_another_command_is_not_a_spare_of_an_unnamed_run(program: str):
    run = Scenario("1")
    run.run.explicit = False
    run.join("a", program=program, command="1")
    full = words.not_wanted("run", 1, "b", program, "program" if program else "nothing")
    with pytest.raises(SettingsConflict, match=pattern(full)):
        run.join("b", program=program, command="2")
    run.join("c", program=program, command="2", explicit_run_id=True)
    run.join("d", program=program, command="1")
    assert run.run.agents.keys() == {"a", "c", "d"}
    run.disconnects("a")
    run.join("a2", node="a", program=program, command="2")
    assert run.run.agents.keys() == {"a2", "c", "d"}


SAME = {"command": "1", "content": "1", "folder": "1"}


@pytest.mark.parametrize(
    ("own", "changes", "is_refused"),
    [
        ([{}], {}, False),
        ([{}], {"content": "2"}, True),
        ([{}], {"content": "", "folder": ""}, False),
        ([{}], {"folder": "2"}, False),
        ([{}, {"folder": "2"}], {"folder": "3"}, False),
        ([{}, {}], {"folder": "2"}, True),
        ([{}, {"folder": "2"}], {"folder": "3", "content": "2"}, True),
        ([{}, {"content": "2"}], {"content": "3"}, False),
        ([{}, {"command": "2"}], {"command": "3"}, False),
        ([{}, {"content": ""}], {"content": "2"}, True),
    ],
    ids=str,
)
def test_an_agent_with_a_script_of_the_same_name_from_elsewhere_is_not_a_spare_of_an_unnamed_run(
    own: list[dict[str, str]], changes: dict[str, str], is_refused: bool
):
    """Nodes may have folders of their own, such as a scratch folder for each."""
    run = Scenario(str(len(own)))
    run.run.explicit = False
    for name, its in zip("ab", own, strict=False):
        run.join(name, program="train.py", **SAME | its)
    run.join("named", program="train.py", command="1", content="9", folder="9", explicit_run_id=True)
    if is_refused:
        refusal = words.not_wanted("run", len(own), "c", "train.py", "command")
        with pytest.raises(SettingsConflict, match=pattern(refusal)):
            run.join("c", program="train.py", **SAME | changes)
    else:
        run.join("c", program="train.py", **SAME | changes)
    assert ("c" in run.run.agents) != is_refused


# Which agents are admitted.

NEW_AGENT = losses.lost("a", losses.REPLACED)
NO_SIGN_OF_LIFE = losses.lost("a", losses.PROBE_UNANSWERED)


def awaits_a(joined: int, names: str) -> str:
    """Return what a round of two waits for while it is not certain whether node a lives."""
    return completion.last_call(completion.joined(joined, names), 2, 2, "", completion.awaits_signs_of_life("a"))


@stories({
    # --node-rank
    "a node rank that a live node holds is refused": (
        "2", "join a node_rank=1; join b node_rank=1", {"woken": "a", "agents": "a"},
        "renew a; refused join b node_rank=1",
        {"refused": "NodeRankTaken",
         "refusal": words.node_rank_taken(1, "run", "a", 1, is_same_node=False)},
        f"{RECENTLY_S}s; refused join b node_rank=1", {"agents": "a"},  # it is probed once in a lease
    ),
    "a refused node rank of the same node names another agent": (
        "2", "join a node_rank=1; join a2 node=a node_rank=1", {"agents": "a"},
        "renew a; refused join a2 node=a node_rank=1",
        {"refusal": words.node_rank_taken(1, "run", "a", 1, is_same_node=True)},
    ),
    "a node rank of a run of one node is refused": (
        "1", "join a node_rank=0; join b node_rank=0", {"agents": "a"}, "renew a; refused join b node_rank=0",
        {"refusal": words.node_rank_taken(0, "run", "a", 0, is_same_node=False)},
    ),
    "a node rank is free again once its node is gone": (
        "2", "join a node_rank=1; leave a; join b node_rank=1", {"wait": "b"},
    ),
    "a new node takes the node rank of one that has disconnected": (
        "2 disconnect_grace_s=60", "join a node_rank=0; disconnect a; join b node_rank=0", {"agents": "b"},
    ),
    "a node rank is free when its holder gives no sign of life": (
        "2 lease_s=4", "join a node_rank=1; join b node_rank=1; 1.9s", {"agents": "a"},
        "0.1s; join b node_rank=1", {"agents": "b"},
    ),
    "who has left the run claims nothing": (
        "1:2", "join a b; leave b; refused join b node=a", {"refused": "AgentFenced", "woken": "a"},
    ),
    # more than max
    "an agent beyond max stands by": ("2", "join a b c", {"wait": "c", "start": "a b"}),
    "a standby takes a lost node's place without a wait": ("2", "join a b spare; lose a; join b", {"ranks": "spare b"}),
    "participants get a seat before standbys": (
        "2 max_restarts=1", "join a b spare; fail a; join b a",
        {"ranks": "a b", "reason spare": completion.standby_full(2, 2)},
    ),
    "the first standby is the first to get a seat": (
        "2", "join a b first second; lose b; join a", {"ranks": "a first"},
    ),
    "a standby exits 0 when the run succeeds": (
        "1", "join a spare; succeed a", {"finish": "a spare", "woken": "a spare", "stage": "succeeded"},
    ),
    # a node's agent starts again
    "a restarted agent takes the place of one whose end the server has not seen": (
        "2 lease_s=6", "join a b; join a-again node=a", {"start": "a b"},  # both may live, and are then two nodes
        "3s", {"reason b": NO_SIGN_OF_LIFE}, "join b", {"ranks": "a-again b", "ledger": "node_lost"},
    ),
    "no round begins with one that is probed, as one that died unseen while it waited": (
        "2 max_restarts=1 lease_s=6", f"join a b; fail b; join a; {RECENTLY_S}s; join a-again node=a; join b",
        {"reason b": awaits_a(3, "2 agents of a, b")},
        "3s", {"ranks": "a-again b", "ledger": "node_lost"},
    ),
    "a round begins when the probe is answered": (
        "2 lease_s=6", f"join first node=a; {RECENTLY_S}s; join second node=a", {"wait": "first second"},
        "renew first", {"ranks": "first second"},
    ),
    "two agents of one node that live are two nodes": ("2", "join first second node=a", {"ranks": "first second"}),
    "an agent that stops its workers is given the time until it speaks again": (
        "2 max_restarts=1 lease_s=6", "join a b; fail b; join a-again node=a; 4s", {"stop": "a b"}, "1s", {"stop": "b"},
    ),
    "a restarted agent takes its dead predecessor's place at once": (
        "2 disconnect_grace_s=60", "join a b; disconnect a; join a-again node=a", {"stop": "b", "reason b": NEW_AGENT},
        "join b", {"ranks": "a-again b", "ledger": "node_lost"},
    ),
    "a rejoining agent does not take the place of its disconnected neighbour": (
        "3 max_restarts=1 disconnect_grace_s=60",
        "join first second node=a; join b; fail b; join second; disconnect second; join first",
        {"agents": "b first second"},
    ),
    # an agent without a connection gets no seat
    "a round does not begin with one whose connection is closed": (
        "2 disconnect_grace_s=1", "join a; disconnect a; join b",
        {"reason b": awaits_a(2, "a, b")}, "0.9s; renew a", {"ranks": "a b"},
    ),
    "one whose connection stays closed misses the round": (
        "2 disconnect_grace_s=1", "join a; disconnect a; join b c; 1s", {"ranks": "b c"},
    ),
    "a standby without a connection holds no round up": (
        "2 max_restarts=1 disconnect_grace_s=60", "join a b spare; disconnect spare; fail a; join a b",
        {"ranks": "a b"},
    ),
    "no last call ends while a connection is closed": (
        "1:3 last_call_timeout_s=5 disconnect_grace_s=60", "join a b; disconnect b; 59s", {"wait": "a b"},
        "1s", {"ranks": "a"},
    ),
    "after a server's restart no agent gets a seat before it is heard": (
        "2 lease_s=10", "join a; restart; join b", {"wait": "a b"}, "renew a", {"ranks": "a b"},
    ),
    # fencing
    "a departed agent is fenced": (
        "2", "join a b; leave a; refused join a",
        {"refused": "AgentFenced", "refusal": words.fenced("a", "a", "run")},
    ),
    "an agent that claims a past in this run is fenced": (
        "2", "join a b; refused join unknown after_round=1", {"refused": "AgentFenced"},
    ),
    "an agent keeps its node": (
        "2 max_restarts=1", "join a b; fail a; refused join a node=elsewhere", {"refused": "MalformedMessage"},
    ),
    "an agent keeps its node rank": (
        "2 max_restarts=1", "join a b; fail a; refused join a node_rank=1", {"refused": "MalformedMessage"},
    ),
    "a repeated join changes nothing": ("2:3", "join a b; ignored join a after_round=0", {"wait": "a b"}),
    "a join that was delayed into the running round changes nothing": (
        "2 max_restarts=1",
        "join a b; fail a; join a b; ignored join a after_round=1; ignored join b after_round=0", {"start": "a b"},
    ),
    "a first join that arrives again does not count as the next one": (
        "2 max_restarts=1", "join a b; fail a; join a after_round=0", {"stop": "a b"},
    ),
    "a repeated join is a sign of life": (
        "2 lease_s=10", "join a; disconnect a; join a after_round=0; 9s", {"agents": "a"},
    ),
})  # fmt: skip
def test_admission(story):
    check(story)


def test_agents_of_one_name_that_join_together_form_at_once():
    """Agents on one machine without node ids join like this."""
    run = Scenario("8")
    run.join(*(f"agent {number}" for number in range(8)), node="machine")
    assert len(run.participants()) == 8


def test_a_shared_node_id_probes_only_a_few_agents():
    many = 10 * MOST_NAMESAKES
    run = Scenario(f"{many}")
    for number in range(many - 1):
        run.join(f"agent {number}", node="localhost")
    run.passes(RECENTLY_S)
    run.join("last", node="localhost")
    assert len(run.woken()) == MOST_NAMESAKES


def test_a_joining_agent_waits_with_its_own_local_world_size_of_this_round():
    run = Scenario("1", max_restarts=1)
    run.join("a", local_world_size=8)
    run.fails("a")
    run.join("a", local_world_size=4)
    assert run.assignment("a").world_size == 4


def test_an_ended_run_gives_no_seats():
    run = running("2", "a", "b", max_restarts=1)
    run.join("spare")
    run.fails("a")
    run.leaves("spare")
    run.passes(run.settings.join_timeout_s)
    assert run.stage is Stage.FAILED
    run.join("a")
    assert run.told(Finish) == {"a", "b"}, "a delayed join does not hide the end from its agent"
    assert run.run.agents["a"].state is AgentState.STOPPING


def test_a_vanished_spare_of_a_first_round_does_not_delay_it():
    run = Scenario("2", disconnect_grace_s=60)
    run.join("a")
    run.disconnects("a")
    run.join("b", "spare", "last")
    run.disconnects("spare")
    assert run.stage is Stage.FORMING
    run.renews("a")
    assert run.participants() == ["a", "b"]


def test_a_copy_of_a_join_is_not_recorded():
    run = Scenario("3")
    run.join("a", "b")
    run.join("a", after_round=0)
    assert run.told(Wait) == {"a", "b"} and run.records[-1].fact.join.agent_id == "b"


def test_the_ids_of_agents_that_are_gone_are_bounded(monkeypatch):
    """The latest are fenced, even if many come and go. A forgotten one is admitted only as a newcomer."""
    monkeypatch.setattr("rdzv_server.core.kernel.run.MOST_DEPARTED", 2)
    run = running("1:9", "a")
    for name in ("b", "c", "d"):
        run.join(name)
        run.leaves(name)
    run.restarts_from_a_snapshot()
    for late in ("c", "d"):
        with pytest.raises(AgentFenced, match=pattern(words.fenced, agent_id=late, run_id="run")):
            run.join(late)
    with pytest.raises(AgentFenced):
        run.leaves("b")
    with pytest.raises(AgentFenced):
        run.join("b", after_round=1)
    run.join("b")
    assert run.run.agents.keys() == {"a", "b"}


# Nodes that may not join, for those that wait for them.


def refuse(run: Scenario, node_id: str, **asked: Any) -> None:
    """Let an agent join that is refused, as the service does."""
    with pytest.raises(ProtocolError) as refusal:
        run.join(node_id, **asked)
    admission.note_refused(run.run, node_id, refusal.value.brief)


def test_a_round_that_lacks_nodes_names_those_that_may_not_join_with_the_reasons():
    run = Scenario("4")
    run.join("a", program="train.py")
    refuse(run, "b", settings=settings_of("3", max_restarts=5))
    refuse(run, "c", program="other.py")
    why = {
        "b": words.asks_for_other_settings(["--nnodes 3 instead of 4", "--max-restarts 5 instead of 0"]),
        "c": words.runs_other_program("other.py", "train.py"),
    }
    told = completion.refused(why)
    assert run.directive("a").reason == completion.too_few(3, 1, 4, "a", refused=told)
    run.join("b")
    del why["b"]
    told = completion.refused(why)
    assert run.directive("a").reason == completion.too_few(2, 2, 4, "a, b", refused=told)
    run.passes(run.run.settings.join_timeout_s)
    assert run.run.end_reason == runs.join_timeout(completion.too_few(2, 2, 4, "a, b", refused=told))
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def test_a_refused_agent_sends_no_control_characters_to_those_that_wait_for_its_node():
    """A terminal would obey them, and anybody who reaches the server may choose the name of a program."""
    run = Scenario("2")
    run.join("a", program="train.py")
    refuse(run, "b", program="\x1b[2Jother.py")
    (why,) = run.run.refused.values()
    assert "other.py" in why and why.isprintable()
    assert run.directive("a").reason.isprintable()


def test_what_is_remembered_of_refused_agents_is_limited_and_ends_with_the_round():
    run = Scenario("2")
    for number in range(100):
        admission.note_refused(run.run, f"n{number}", "x" * 1_000)
    assert list(run.run.refused) == [f"n{number}" for number in range(100 - admission.MOST_REFUSED, 100)]
    assert {len(why) for why in run.run.refused.values()} == {admission.REFUSED_BYTES}
    run.join("a", "b")
    assert run.stage is Stage.RUNNING and not run.run.refused
    admission.note_refused(run.run, "c", "x")
    assert not run.run.refused
