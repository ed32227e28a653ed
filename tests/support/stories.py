"""Stories of runs in a few words each, and what can be seen at their end.

    @stories({"a standby takes a lost node's place": ("2", "join a b spare; lose a; join b", {"ranks": "spare b"})})

A story begins with `--nnodes` and the settings of the run. Then steps and expected observations alternate. Semicolons
separate steps. A step is a verb of `STEPS`, agents or nodes, and settings of that step.

`rejoin` is every agent that stops, `form` waits for the last call, and `1.5s` lets time pass. A step that is `refused`
raises and changes nothing. A step that is `ignored` changes nothing that is recorded.

`SEEN` has the possible observations. At the end of each story, the run's records must restore the run as it is.
"""

from ast import literal_eval
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import asdict
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Drain, Finish, RestartCosts, Start, Stop, Wait
from rdzv_protocol.queries import Notice, PairTest

from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies import restart_cost, time_ledger
from rdzv_server.core.policies.stragglers import Stragglers
from rdzv_server.core.policies.time_ledger import TimeStatus
from tests.support.scenario import Scenario, durable, replayed, snapshot

Story = tuple[str | Mapping[str, str], ...]

SAVED = "60s; tell a highest_step=55 step_s=1 telling_s=60 checkpoint_step=40 checkpoint_s=5"
"""A minute with 55 steps, of which 40 are saved."""
STEPS: dict[str, Callable[..., None]] = {
    "join": Scenario.join,
    "fail": Scenario.fails,
    "succeed": Scenario.succeeds,
    "leave": Scenario.leaves,
    "retract": Scenario.retracts,
    "disconnect": Scenario.disconnects,
    "lose": Scenario.is_lost,
    "renew": Scenario.renews,
    "ended": Scenario.ended,
    "announce": Scenario.announces,
    "acknowledge": Scenario.acknowledges,
    "tell": Scenario.tells,
    "steps": Scenario.steps,
    "test": Scenario.tests_network,
    "suspect": Scenario.suspects,
    "judge": Scenario.judges,
    "restart": Scenario.restarts,
    "restart_from_snapshot": Scenario.restarts_from_a_snapshot,
    "leave_unfit": Scenario.leaves_unfit,
    "join_unfit": Scenario.joins_unfit,
    "stop": Scenario.is_stopped,
    "admit": Scenario.admits,
    "restart_run": Scenario.is_restarted,
    "resize": Scenario.is_resized,
    "drain": Scenario.drains,
    "cordon": Scenario.cordons,
    "uncordon": Scenario.uncordons,
}

SEEN: dict[str, Callable[..., str]] = {
    "ranks": lambda run: " ".join(run.participants()),
    "start": lambda run: _names(run.told(Start)),
    "stop": lambda run: _names(run.told(Stop)),
    "wait": lambda run: _names(run.told(Wait)),
    "drain": lambda run: _names(run.told(Drain)),
    "finish": lambda run: _names(run.told(Finish)),
    "agents": lambda run: _names(run.run.agents),
    "examined": lambda run: _names(run.examined()),
    "tested": lambda run: _names(run.asked(PairTest)),
    "noticed": lambda run: _names(run.asked(Notice)),
    "notice": lambda run, name: _notice(run.asked(Notice)[name]),
    "woken": lambda run: _names(run.woken()),
    "stage": lambda run: run.stage.value,
    "round": lambda run: str(run.run.round),
    "ledger": lambda run: " ".join(cause + "!" * charged for cause, charged in run.ledger()),  # !: charged
    "refused": lambda run: type(run.refusal).__name__,
    "refusal": lambda run: str(run.refusal),
    "announced": lambda run: "; ".join(run.announced()),
    "kinds": lambda run, prefix: " ".join(event.kind for event in run.events if event.kind.startswith(prefix)),
    "end": lambda run: run.run.end_reason,
    "time": lambda run: _seconds(time_ledger.view(run.run, run.now), "running", "forming", "restarting", "waiting"),
    "steps": lambda run: _steps(time_ledger.view(run.run, run.now)),
    "parts": lambda run: _parts(time_ledger.view(run.run, run.now)),
    "costs": lambda run: _costs(restart_cost.total(run.run)),
    "restarts": lambda run: _listed(time_ledger.view(run.run, run.now).restarts),
    "why": lambda run: run.run.ledger[-1].reason,
    "failed": lambda run: " ".join(record.agent_id for record in run.run.failures),
    "blamed": lambda run: run.run.first_of_round.agent_id,
    "counted": lambda run: _names(run.run.failures_by_node),
    "first": lambda run: run.run.first_failure.agent_id,
    "slow": lambda run: _names(each.node_id for each in Stragglers.of(run.run).stragglers.values()),
    "unfit": lambda run: "; ".join(run.run.unfit.values()),
    "faults": lambda run: _names(f"{blame.node_id}:{blame.fault.name}" for blame in run.machine.blamed),
    "reason": lambda run, name: run.reason(name),
    "left_s": lambda run, name: f"{run.directive(name).remaining_s:g}",
    "told": lambda run, kind: "; ".join(run.reasons(kind)),
    "master": lambda run, name: f"{run.assignment(name).master_addr}:{run.assignment(name).master_port}",
}


def until(reason: str, ending: str, remaining_s: float) -> str:
    """Return the text that an agent reads while it waits for this reason. `ending` comes in `remaining_s` seconds."""
    return Wait(reason=reason, ending=ending, remaining_s=remaining_s).sentence


def stories(told: Mapping[str, Story]) -> pytest.MarkDecorator:
    """Return parameters for a test that calls `check` with each `story`."""
    return pytest.mark.parametrize("story", [pytest.param(story, id=name) for name, story in told.items()])


def check(story: Story) -> Scenario:
    """Run the story, and compare the observations with its expectations. Return the run for further checks."""
    nodes, *chapters = story
    assert isinstance(nodes, str)
    _, (low_high,), settings = _parse(f"run {nodes}")
    run = Scenario(low_high, **settings)
    for chapter in chapters:
        if isinstance(chapter, str):
            play(run, chapter)
        else:
            seen = {what: SEEN[what.split()[0]](run, *what.split()[1:]) for what in chapter}
            assert seen == chapter, f"it was otherwise: {seen}"
    assert durable(replayed(run.created, run.records)) == durable(run.run), "the records bring the run back"
    return run


def play(run: Scenario, steps: str) -> None:
    """Apply these steps to the run."""
    for step in steps.split(";"):
        verb, names, changes = _parse(step)
        if verb == "refused":
            before = snapshot(run.run)
            with pytest.raises(ProtocolError) as refusal:
                play(run, step.partition(verb)[2])
            assert snapshot(run.run) == before
            run.refusal = refusal.value
        elif verb == "ignored":
            before = durable(run.run)
            play(run, step.partition(verb)[2])
            assert durable(run.run) == before
        elif verb == "rejoin":
            run.join(*list(run.run.stopping))
        elif verb == "form":
            assert run.stage is Stage.FORMING
            run.ends_last_call()
        elif verb in STEPS:
            STEPS[verb](run, *names, **changes)
        else:
            run.passes(float(verb.removesuffix("s")))


def _parse(step: str) -> tuple[str, list[str], dict[str, Any]]:
    verb, *words = step.split()
    changes = {name: _value(text) for name, equals, text in (word.partition("=") for word in words) if equals}
    return verb, [word for word in words if "=" not in word], changes


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _seconds(spent: TimeStatus, *names: str) -> str:
    """Return the seconds spent in each of these, if any: "running 60, restarting 2"."""
    return _listed({name: getattr(spent, name) for name in names})


def _parts(spent: TimeStatus) -> str:
    """Return the seconds of the running phase by part. Without progress the remainder is `running`."""
    parts = {part: getattr(spent, part) for part in time_ledger.PARTS}
    if spent.training is None:
        return _listed({"running": spent.running - sum(parts.values())} | parts)
    return _listed({"training": spent.training} | parts)


def _steps(spent: TimeStatus) -> str:
    """Return the steps that restarts have kept and repeated."""
    return _listed({"kept": spent.kept_steps, "repeated": spent.repeated_steps})


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in numbers.items() if number)


def _costs(total: RestartCosts) -> str:
    """Return the parts of what restarts took, `?` for unknown ones: "detecting 2, stopping 1, spawning ?"."""
    parts = {part.removesuffix("_s"): seconds for part, seconds in asdict(total.cost).items()}
    known = [
        f"{name} ?" if seconds is None else f"{name} {seconds:g}" for name, seconds in parts.items() if seconds != 0
    ]
    return f"{total.followed} of {total.restarts}: {', '.join(known)}"


def _notice(notice: Notice) -> str:
    return f"{notice.source} {notice.node_id} in {notice.remaining_s:g} s"


def _names(names: Any) -> str:
    return " ".join(sorted(names))
