"""Stragglers: which node is found to be slow, and what follows, from the nodes' reports of their steps."""

from itertools import pairwise
from random import Random

import pytest
from rdzv_protocol.queries import Notice

from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies import words
from rdzv_server.core.policies.stragglers import LOOKS, REPLACED_AGAIN_AFTER_S, Stragglers
from rdzv_server.core.views import status_view, watch_view
from rdzv_server.words import notices
from tests.support.scenario import running
from tests.support.stories import check, stories

LEASE_S = 10.0
LONG = f"{(LOOKS + 1) * LEASE_S}"
"""Seconds within which a straggler is found."""
TWICE = f"{2 * (LOOKS + 1) * LEASE_S}"
SLOW = words.slow("b", False, own_s=3.0, times=3.0, usual_s=1.0)
REPLACED = f"2 lease_s={LEASE_S} replace_stragglers=True notice_timeout_s=60"
TOLD = f"join a b c; steps {LONG} a=1.0 b=3.0 c=0.0; steps {LEASE_S} a=1.0 b=3.0 c=0.0"
"""The workers of a run get a notice that its slow node makes room."""


@stories({
    # which node is slow
    "a node that is slow for a while is named once until it is slow no more": (
        f"3 lease_s={LEASE_S}",
        f"join a b c; steps {LONG} a=1.0 b=1.0 c=1.0; steps {(LOOKS - 1) * LEASE_S} a=1.0 b=2.0 c=1.1", {"slow": ""},
        f"steps {LONG} a=1.0 b=2.0 c=1.1",
        {"slow": "b", "told straggler_found": words.slow("b", False, own_s=2.0, times=1.8, usual_s=1.1)},
        f"steps {LONG} a=1.0 b=1.0 c=1.1",
        {"slow": "", "kinds straggler": "straggler_found straggler_over", "stage": "running"},
    ),
    "in lockstep all wait for the slowest": (
        f"3 lease_s={LEASE_S}", f"join a b c; steps {LONG} a=2.0 b=2.0 c=2.0", {"slow": ""},
    ),
    "there the own work tells who is slow": (
        f"3 lease_s={LEASE_S}", f"join a b c; steps {TWICE} a=2.0 b=2.0 c=2.0 work={{'a':0.9,'b':0.8,'c':1.9}}",
        {"told straggler_found": words.slow("c", True, own_s=1.9, times=2.1, usual_s=0.9)},
    ),
    "own work is compared only if all nodes tell it": (
        f"3 lease_s={LEASE_S}", f"join a b c; steps {TWICE} a=2.0 b=2.0 c=2.0 work={{'a':0.1,'b':1.9}}", {"slow": ""},
    ),
    "a few milliseconds mean nothing": (
        f"2 lease_s={LEASE_S}", f"join a b; steps {TWICE} a=0.002 b=0.004", {"slow": ""},
    ),
    "nor does it that nodes all differ": (
        f"5 lease_s={LEASE_S}", f"join a b c d e; steps {TWICE} a=1.0 b=2.0 c=3.0 d=4.0 e=5.0", {"slow": ""},
    ),
    "one node is no straggler": (f"1 lease_s={LEASE_S}", f"join a; steps {TWICE} a=1.0", {"slow": ""}),
    "how much longer its steps take is a setting": (
        f"2 lease_s={LEASE_S} straggler_factor=1.2", f"join a b; steps {TWICE} a=1.0 b=1.3", {"slow": "b"},
    ),
    "above which it is none": (
        f"2 lease_s={LEASE_S} straggler_factor=1.4", f"join a b; steps {TWICE} a=1.0 b=1.3", {"slow": ""},
    ),
    "stragglers outlive the server": (
        f"2 lease_s={LEASE_S}", f"join a b; steps {TWICE} a=1.0 b=3.0; restart", {"slow": "b"},
        f"renew a b; steps {TWICE} a=1.0 b=1.0", {"slow": ""},
    ),
    "workers that have a notice are not compared": (
        f"1:3 lease_s={LEASE_S}", f"join a b c; announce c notice_s=900 stop_s=999; steps {LONG} a=1.0 b=3.0 c=1.0",
        {"slow": "", "stage": "running"},
    ),
    # which node is replaced
    "one that stands by takes the place of a straggler for free": (
        f"2 lease_s={LEASE_S} replace_stragglers=True", f"join a b; steps {TWICE} a=1.0 b=3.0",
        {"stage": "running", "slow": "b"},  # there is no spare
        f"join c; steps {2 * LEASE_S} a=1.0 b=3.0 c=0.0",
        {"faults": "b:slow", "reason a": notices.replaced(SLOW), "slow": ""},
        "join a b c", {"ledger": "node_drained"},
    ),
    "workers get a notice before": (
        REPLACED, TOLD, {"stage": "running", "faults": "", "noticed": "a b"},
        "acknowledge a", {"stage": "running"}, "acknowledge b", {"stage": "forming", "faults": "b:slow"},
        "join a b c", {"ledger": "node_drained"},
    ),
    "none is replaced while the workers have a notice already": (
        f"2:3 lease_s={LEASE_S} replace_stragglers=True scale_up=on-notice notice_timeout_s=600",
        f"join a b; form; steps {TWICE} a=1.0 b=3.0; join c; steps {LONG} a=1.0 b=3.0 c=0.0",
        {"slow": "b", "kinds notice": "notice_given", "faults": ""},
    ),
    "a straggler stays if no spare is left when all have saved": (
        REPLACED, f"{TOLD}; leave c; acknowledge a b", {"stage": "forming", "faults": ""},
        "join a b", {"ranks": "a b"},  # workers that have saved may have ended
    ),
    "a worker that loses one that has saved and exited costs nothing, and the straggler is replaced": (
        f"{REPLACED} max_restarts=1", f"{TOLD}; acknowledge a; fail b consequence=True",
        {"stage": "forming", "faults": "b:slow"}, "join a b c", {"ledger": "node_drained"},
    ),
    "a round that ends before all have saved leaves the straggler where it is": (
        REPLACED, f"{TOLD}; lose a", {"stage": "forming", "noticed": "", "faults": "a:lost"},
    ),
})  # fmt: skip
def test_stragglers(story):
    check(story)


def test_a_node_that_waits_for_anothers_evaluation_makes_as_many_steps_and_is_not_slow() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S)
    for step in range(0, 400, 5):
        run.passes(5.0)
        run.tells("a", lowest_step=step, step_s=0.2, age_s=0.5)
        run.tells("b", lowest_step=step, step_s=0.5, age_s=0.5)
    assert not Stragglers.of(run.run).stragglers


def test_a_slow_node_is_shown_and_the_notice_to_workers_has_the_reason() -> None:
    run = check((REPLACED, TOLD))
    assert {node.node_id: node.slow for node in status_view.nodes(run.run, run.now)} == {"a": "", "b": SLOW, "c": ""}
    watched = {agent_id: watch_view.node(run.run, agent).get("slow") for agent_id, agent in run.run.agents.items()}
    assert watched == {"a": None, "b": SLOW, "c": None}
    notice = run.asked(Notice)["a"]
    assert (notice.source, notice.node_id) == ("node_drained", "b") and notice.reason.startswith(SLOW)


@pytest.mark.timeout(600)  # pure computation, on a machine that may be busy
@pytest.mark.parametrize("seed", range(2))
def test_a_day_of_ordinary_jitter_finds_no_straggler(seed: int) -> None:
    """Steps differ by some percent, and one in ten takes three times as long: a checkpoint that is not reported."""
    random, names = Random(seed), "abcdefgh"
    run = running("8", *names, lease_s=LEASE_S)
    for _ in range(8_640 // 4):
        taken = {name: random.gauss(1.0, 0.08) * (3.0 if random.random() < 0.1 else 1.0) for name in names}
        run.steps(LEASE_S, **taken)
    assert run.reasons("straggler_found") == []


def test_a_node_without_new_steps_is_not_a_straggler() -> None:
    """A node without new steps may hang, which other rules detect."""
    run = running("2", "a", "b", lease_s=LEASE_S)
    for number in range(8 * LOOKS):
        run.passes(LEASE_S / 2)
        run.tells("a", lowest_step=number, step_s=1.0)
        run.tells("b", lowest_step=7, step_s=9.0)
    assert run.reasons("straggler_found") == []


def test_a_run_without_step_times_is_not_compared() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S)
    run.tells("a", lowest_step=3)
    assert run.run.signs[Stragglers.name].look_at is None


def test_a_notice_for_a_straggler_ends_at_its_time_and_outlives_the_server() -> None:
    run = check((REPLACED, TOLD))
    until = run.run.replacement.until
    run.restarts()
    run.renews("a", "b", "c")
    assert run.asked(Notice).keys() == {"a", "b"}
    while run.now < until:
        assert run.stage is Stage.RUNNING
        run.passes(min(LEASE_S / 2, until - run.now))
        run.renews(*(agent for agent in "abc" if agent in run.run.agents))
    assert run.stage is Stage.FORMING and [blame.fault for blame in run.machine.blamed] == [*Stragglers.faults]


def test_replacements_are_far_apart() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S, replace_stragglers=True)
    run.join("c")
    at = []
    for _ in range(40):
        run.steps((LOOKS + 1) * LEASE_S, a=1.0, b=3.0, c=3.0)
        if run.stage is Stage.FORMING:
            at.append(run.run.opening.at)
            run.join("a", "b", "c")
    assert len(at) > 2
    assert all(later - earlier >= REPLACED_AGAIN_AFTER_S for earlier, later in pairwise(at))
