"""The parts of every restart add up to its whole, and to what the time ledger has for the same seconds."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from pytest import approx

from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies import restart_cost, time_ledger
from tests.support.scenario import Scenario, durable, replayed

AGENTS = ("a", "b", "c")
seconds = st.sampled_from([0.0, 0.5, 3.0, 20.0, 100.0]) | st.floats(0.0, 50.0)
ages = st.none() | seconds
tells = st.fixed_dictionaries(
    {"telling_s": seconds},
    optional={f"{name}_ago_s": ages for name in restart_cost.STARTS},
)
steps = st.one_of(
    st.tuples(st.just("pass"), seconds),
    st.tuples(st.just("fail"), st.sampled_from(AGENTS), seconds),
    st.tuples(st.just("lose"), st.sampled_from(AGENTS)),
    st.tuples(st.just("join"), st.sampled_from(AGENTS)),
    st.tuples(st.just("join"), st.sampled_from(AGENTS)),
    st.tuples(st.just("join"), st.sampled_from(AGENTS)),
    st.tuples(st.just("tell"), st.sampled_from(AGENTS), tells),
    st.tuples(st.just("tell"), st.sampled_from(AGENTS), tells),
    st.tuples(st.just("restart_run")),
    st.tuples(st.just("restart_server")),
)


@given(st.lists(steps, max_size=40))
def test_the_parts_add_up(story):
    run = Scenario("1:3", max_restarts=100, last_call_timeout_s=2.0, lease_s=30.0)
    run.join("a", "b")
    run.passes(2.0)
    for step in story:
        if run.stage.is_end:
            break
        _play(run, step)
        _adds_up(run)
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def _play(run, step):
    match step:
        case "pass", s:
            run.passes(s)
            run.renews(*run.run.agents)
        case "fail", name, ago_s if name in run.run.running:
            run.fails(name, ago_s=ago_s)
        case "lose", name if name in run.run.agents and len(run.run.agents) > 1:
            run.is_lost(name)
        case "join", name if name not in run.run.running:
            run.join(name if name in run.run.agents or name not in run.run.departed_ids else f"{name}{run.now}")
        case "tell", name, told if name in run.run.running:
            run.tells(name, **told)
        case ("restart_run",):
            run.is_restarted()
        case ("restart_server",):
            run.restarts()


def _adds_up(run):
    total = restart_cost.total(run.run)
    parts = {part: each or 0.0 for part, each in asdict(total.cost).items()}
    assert all(each >= 0.0 for each in parts.values())
    spent = time_ledger.view(run.run, run.now)
    formed_s = sum(parts[part] for part in ("stopping_s", "waiting_s", "forming_s"))
    forming_s = run.now - run.run.opening.at if run.stage is Stage.FORMING and run.run.membership else 0.0
    assert formed_s + forming_s == approx(sum(spent.restarts.values()), abs=0.02), "no second is left out"
    costs = restart_cost.of_rounds(run.run)
    took_s = {number: seconds for number, cost in costs.items() if (seconds := restart_cost.took_s(cost)) is not None}
    ledger = time_ledger.TimeLedger.of(run.run).time
    if ledger.starting_s is not None and run.run.round in took_s and run.stage is Stage.RUNNING:
        begun = run.run.started_at + ledger.starting_s
        opened_at = run.run.opening.at
        detected_s = took_s[run.run.round] - (begun - opened_at)
        assert detected_s >= -0.01 and took_s[run.run.round] <= sum(parts.values()) + 0.01
    assert total.followed <= total.restarts == sum(run.run.restarts.values())
