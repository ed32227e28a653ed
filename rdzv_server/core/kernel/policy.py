"""Policies of a run: rules beside the rendezvous itself, each in a room of its own in `policies/`.

A policy reads the run and never changes it. It acts through the `Kernel`, and keeps two kinds of state of its own:

- `state` follows from facts only. It is the same after a replay, and snapshots hold it.
- `signs` are what was heard since the server began. A restarted server begins without them.

The machine calls the hooks that a policy overrides, in the order of the policies that it was given; a hook that is not
overridden costs nothing. A hook that returns a value is a question and changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import Progress

from rdzv_server.core.events import Event, Fact
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.run import Cause, PolicyState, Run

StateT = TypeVar("StateT", bound=PolicyState)
SignsT = TypeVar("SignsT", bound=Struct)
P = ParamSpec("P")
R = TypeVar("R")


AT_ONCE = float("-inf")
"""Deadline that has come already."""


class Rule(NamedTuple):
    """Meaning of one kind of event. Each function gets its owner (a machine or a policy), the event, and the time."""

    check: Callable[[Any, Any, float], Fact | None] | None = None
    """Question which fact is to be applied; None if none. It changes nothing.

    Raises `ProtocolError` for an event that is refused.
    """
    apply: Callable[[Any, Any, float], None] | None = None
    """Transition of a fact, both when it happens and in a replay."""
    note: Callable[[Any, Any, float], Fact | None] | None = None
    """Change of signs by an event that was not refused, before its fact is applied; never in a replay.

    A fact that it returns takes the place of that of `check`.
    """
    may_end_round: bool = True
    """Whether the running round may end by this fact."""


Rules = Mapping[type[Event], Rule]


class NoSigns(Struct):
    """Signs of a policy that has none."""


class Policy(Generic[StateT, SignsT]):
    """Policy of one run. Hooks do nothing unless they are overridden."""

    name: ClassVar[str]
    State: ClassVar[type[Any]] = PolicyState
    Signs: ClassVar[type[Any]] = NoSigns
    rules: ClassVar[Rules] = {}
    """Rules of the policy's own facts, and of events that lead to them."""

    def __init__(self, kernel: Kernel, now: float) -> None:
        self.kernel = kernel
        self.run = kernel.run
        self.state: StateT
        self.adopt(self.first_state(now))
        self.begin_signs()

    def first_state(self, now: float) -> StateT:
        """State of a run that has just been created."""
        state: StateT = self.State()
        return state

    def adopt(self, state: StateT) -> None:
        """Take this state, which a new run has or a snapshot held."""
        self.state = self.run.policies[self.name] = state

    def begin_signs(self) -> None:
        """Forget all signs."""
        self.signs: SignsT = self.Signs()
        self.run.signs[self.name] = self.signs

    @classmethod
    def of(cls, run: Run) -> StateT:
        """State of this policy in a run; that of a new run if the run has no such policy."""
        state: StateT = run.policies.get(cls.name) or cls.State()  # type: ignore[assignment]
        return state

    # What people are shown of a run, in every view.

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> Mapping[str, str]:
        """Return sentences about the agent's node, each by a word for its state, such as `slow`."""
        return {}

    @classmethod
    def run_remark(cls, run: Run, now: float) -> str:
        """Return a phrase about the running round that follows its reason; empty for none."""
        return ""

    # Hooks that are called in a replay, too.

    def settle(self, now: float) -> None:
        """Draw conclusions from the fact that was just applied."""

    def before_round_ends(self, fact: Fact, now: float) -> Fact | None:
        """Return a fact that is to be recorded before this one, which may end the running round."""
        return None

    def round_opened(self, cause: Cause, now: float) -> None:
        """Forget what was about the round that ends."""

    def workers_succeeded(self, agent_id: str) -> None:
        """Forget what was about running workers of this agent: all of them have exited 0."""

    def told(self, event: RunEvent, now: float) -> None:
        """Note an event of the run. People are told the same event."""

    def run_ended(self, now: float) -> None:
        """Close the books of a run that has just ended."""

    def report(self) -> Mapping[str, Any]:
        """Return fields of the final report that are this policy's."""
        return {}

    # Hooks that are called only while the server is live.

    def server_restarted(self, now: float) -> None:
        """Note that this server has just taken the run over, which has not ended."""

    def is_news(self, agent_id: str, progress: Progress, now: float) -> bool:
        """Whether `progressed` has anything to do."""
        return False

    def progressed(self, agent_id: str, progress: Progress, now: float) -> Fact | None:
        """Take what an agent of the run tells of its workers' progress; return the fact that follows, if any.

        The fact cannot end the round. If several policies return one, all are applied.
        """
        return None

    def holds_round(self, now: float) -> bool:
        """Whether the forming round, which could complete now, has to wait for this policy."""
        return False

    def prepare_round(self, now: float) -> None:
        """Begin what a round that the policy holds has to wait for, with `Kernel.hold`."""

    def attend(self, now: float) -> None:
        """Change signs, and send agents queries, as the facts and the time demand; called once a deadline has come."""

    def deadline(self) -> float | None:
        """Time at which `attend` or `due` has something to do, if nothing else happens before; `AT_ONCE` if now."""
        return None

    def due(self, now: float) -> Fact | None:
        """Return the fact that follows from the time that has passed, if any."""
        return None


Policies = Sequence[type[Policy[Any, Any]]]


class Hooks:
    """Hooks that the policies of one run override, each in the order of the policies, and the rules of their events."""

    def __init__(self, policies: Sequence[Policy[Any, Any]]) -> None:
        self.settle = _overridden(policies, Policy.settle)
        self.before_round_ends = _overridden(policies, Policy.before_round_ends)
        self.workers_succeeded = _overridden(policies, Policy.workers_succeeded)
        self.told = _overridden(policies, Policy.told)
        self.run_ended = _overridden(policies, Policy.run_ended)
        self.report = _overridden(policies, Policy.report)
        self.round_opened = _overridden(policies, Policy.round_opened)
        self.server_restarted = _overridden(policies, Policy.server_restarted)
        self.is_news = _overridden(policies, Policy.is_news)
        self.progressed = _overridden(policies, Policy.progressed)
        self.holders = tuple(
            zip(_overridden(policies, Policy.holds_round), _overridden(policies, Policy.prepare_round), strict=True)
        )
        self.attend = _overridden(policies, Policy.attend)
        self.deadline = _overridden(policies, Policy.deadline)
        self.due = _overridden(policies, Policy.due)
        self.rules = {kind: (policy, rule) for policy in policies for kind, rule in policy.rules.items()}


def _overridden(
    policies: Sequence[Policy[Any, Any]], hook: Callable[Concatenate[Policy[Any, Any], P], R]
) -> tuple[Callable[P, R], ...]:
    name = hook.__name__
    return tuple(getattr(policy, name) for policy in policies if getattr(type(policy), name) is not hook)
