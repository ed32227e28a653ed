"""Policies of a run: rules beside the rendezvous itself, each in a file or folder of its own in `policies/`.

A policy reads the run and never changes it. It acts through the `Kernel`, and keeps two kinds of state of its own:

- `state` follows from facts only. It is the same after a replay, and snapshots hold it.
- `signs` are what the server has heard since it started. After a restart they are empty.

The machine calls the hooks that a policy overrides, in the order of the policies that it was given. A hook that is not
overridden costs nothing. A hook that returns a value only answers a question, and changes nothing; only `progressed`
also keeps what it has heard.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from msgspec import Struct
from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.exposition import Metric, Sample
from rdzv_protocol.messages import Progress
from rdzv_protocol.states import Health

from rdzv_server.core.events import Event, Fact, LeaseRenewed
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.run import Cause, PolicyState, Run
from rdzv_server.core.node_history import Fault

StateT = TypeVar("StateT", bound=PolicyState)
SignsT = TypeVar("SignsT", bound=Struct)
P = ParamSpec("P")
R = TypeVar("R")


IMMEDIATELY = float("-inf")
"""Deadline that has already passed."""


class Rule(Struct, frozen=True):
    """Meaning of one kind of event. Each function gets its owner (a machine or a policy), the event, and the time."""

    check: Callable[[Any, Any, float], Fact | None] | None = None
    """Function that returns the fact to apply, or None if there is none. It changes nothing. Raises `ProtocolError` for
    an event that is refused."""
    apply: Callable[[Any, Any, float], None] | None = None
    """Function that applies a fact, both when it happens and in a replay."""
    note: Callable[[Any, Any, float], Fact | None] | None = None
    """Function that changes signs for an event that was not refused, before its fact is applied. A replay does not call
    it. If it returns a fact, that fact replaces the one from `check`."""
    may_end_round: bool = True
    """Whether the fact may end the running round."""


Rules = Mapping[type[Event], Rule]


class Finding(Struct, frozen=True):
    """One thing that is wrong with a run: a state of its health."""

    state: Health
    sentence: str
    since: float
    next: tuple[str, ...] = ()
    """Steps that a person can take, most with a command of `rdzvctl` after a colon. The first one comes first."""
    is_trouble: bool = True
    """Whether a person should look at the run because of this."""


class NoSigns(Struct):
    """Signs of a policy that has none."""


class Policy(Generic[StateT, SignsT]):
    """Policy of one run. Hooks do nothing unless they are overridden."""

    name: ClassVar[str]
    State: ClassVar[type[Any]] = PolicyState
    Signs: ClassVar[type[Any]] = NoSigns
    rules: ClassVar[Rules] = {}
    """Rules of the policy's own facts, and of the events that lead to them."""
    faults: ClassVar[Sequence[Fault]] = ()
    """Faults that only this policy blames nodes for."""
    metrics: ClassVar[Sequence[Metric]] = ()
    """Metrics of single runs, for `samples`. The first label of each is `run_id`."""
    counters: ClassVar[Mapping[Metric, EventKind]] = {}
    """Metrics that count all events of a kind."""

    def __init__(self, kernel: Kernel, now: float) -> None:
        self.kernel = kernel
        self.run = kernel.run
        self.state: StateT
        self.adopt(self.first_state(now))
        self.begin_signs()

    def first_state(self, now: float) -> StateT:
        """Return the state for a run that has just been created."""
        state: StateT = self.State()
        return state

    def adopt(self, state: StateT) -> None:
        """Take this state, of a new run or from a snapshot."""
        self.state = self.run.policies[self.name] = state

    def begin_signs(self) -> None:
        """Forget all signs."""
        self.signs: SignsT = self.Signs()
        self.run.signs[self.name] = self.signs

    @classmethod
    def of(cls, run: Run) -> StateT:
        """Return the state of this policy in a run, or the state of a new run if the run does not have the policy."""
        state: StateT = run.policies.get(cls.name) or cls.State()  # type: ignore[assignment]
        return state

    # Remarks for people about a run, in every view.

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> Mapping[str, str]:
        """Return sentences about the agent's node. The key of each is a word for the node's state, such as `unfit`.

        The run may be in any stage, even without this policy's state (see `of`). If it does not have the agent, there
        are no sentences.
        """
        return {}

    @classmethod
    def run_remark(cls, run: Run, now: float) -> str:
        """Return a phrase that follows the running round's reason; empty if there is none."""
        return ""

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        """Return what is wrong with the run; None if nothing is. The run has not ended."""
        return None

    @classmethod
    def samples(cls, run: Run, now: float, label: str) -> Iterable[Sample]:
        """Yield the values of `metrics` for a run that has not ended. `label`: value of `run_id`."""
        return ()

    # Hooks that a replay calls, too.

    def settle(self, now: float) -> None:
        """Update the state after the fact that was just applied."""

    def before_round_ends(self, fact: Fact, now: float) -> Fact | None:
        """Return a fact to record before this one, which may end the running round; None if there is none."""
        return None

    def round_opened(self, cause: Cause, now: float) -> None:
        """Forget everything about the round that ends."""

    def workers_succeeded(self, agent_id: str) -> None:
        """Forget everything about this agent's running workers: all of them have exited 0."""

    def on_event(self, event: RunEvent, now: float) -> None:
        """Note an event of the run, which people see as well."""

    def run_ended(self, now: float) -> None:
        """Complete the state of a run that has just ended."""

    def report(self) -> Mapping[str, Any]:
        """Return this policy's fields of the final report. The event of the run's end has those that `RunEvent` has."""
        return {}

    # Hooks that a replay does not call.

    def server_restarted(self, now: float) -> None:
        """Note that the server has just taken over the run after a restart. The run has not ended."""

    def progressed(self, agent_id: str, progress: Progress, now: float) -> Fact | None:
        """Handle an agent's report of its workers' progress; return the fact that follows, or None.

        The fact must not end the round. If several policies return a fact, all of them are applied. If something
        follows from a report, this is called for it twice.
        """
        return None

    def renewed(self, event: LeaseRenewed, now: float) -> Fact | None:
        """Return the fact that follows from an agent's poll; None for most polls. This changes nothing.

        The fact must not end the round.
        """
        return None

    def holds_round(self, now: float) -> bool:
        """Return whether the forming round, which could complete now, has to wait for this policy."""
        return False

    def prepare_round(self, now: float) -> None:
        """Begin what the held round has to wait for, with `Kernel.hold`."""

    def attend(self, now: float) -> None:
        """Change signs and send agents queries, as the facts and the time require.

        Called after a deadline has passed.
        """

    def deadline(self) -> float | None:
        """Return when `attend` or `due` has something to do, if nothing else happens before; `IMMEDIATELY` for now.

        After that time, `attend` or the fact of `due` must change it. Otherwise the server calls them without a pause.
        """
        return None

    def due(self, now: float) -> Fact | None:
        """Return the fact that follows from the time that has passed, or None."""
        return None


Policies = Sequence[type[Policy[Any, Any]]]


class Hooks:
    """Hooks that the policies of one run override, each in the order of the policies; the rules of their events, and
    their faults."""

    def __init__(self, policies: Sequence[Policy[Any, Any]]) -> None:
        self.settle = _overridden(policies, Policy.settle)
        self.before_round_ends = _overridden(policies, Policy.before_round_ends)
        self.workers_succeeded = _overridden(policies, Policy.workers_succeeded)
        self.on_event = _overridden(policies, Policy.on_event)
        self.run_ended = _overridden(policies, Policy.run_ended)
        self.report = _overridden(policies, Policy.report)
        self.round_opened = _overridden(policies, Policy.round_opened)
        self.server_restarted = _overridden(policies, Policy.server_restarted)
        self.renewed = _overridden(policies, Policy.renewed)
        self.progressed = _overridden(policies, Policy.progressed)
        self.holders = tuple(
            zip(_overridden(policies, Policy.holds_round), _overridden(policies, Policy.prepare_round), strict=True)
        )
        self.attend = _overridden(policies, Policy.attend)
        self.deadline = _overridden(policies, Policy.deadline)
        self.due = _overridden(policies, Policy.due)
        self.rules = {kind: (policy, rule) for policy in policies for kind, rule in policy.rules.items()}
        self.faults = {fault.name: fault for policy in policies for fault in policy.faults}


def _overridden(
    policies: Sequence[Policy[Any, Any]], hook: Callable[Concatenate[Policy[Any, Any], P], R]
) -> tuple[Callable[P, R], ...]:
    name = hook.__name__
    return tuple(getattr(policy, name) for policy in policies if getattr(type(policy), name) is not hook)
