"""Features: what each may do in an agent's life, and what it sees of the agent."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Reply

from node_agent.config import AgentConfig
from node_agent.core.effects import OwnEffect
from node_agent.core.events import Event
from node_agent.output.console import Console
from node_agent.workers.orphans import Orphans


class Kernel(Protocol):
    """The agent, as its features see it."""

    config: AgentConfig
    console: Console
    orphans: Orphans | None
    """Keeper of what workers leave behind; None: this process has children of its own."""
    assignment: Assignment | None
    """The round of the workers that were started last."""

    def feed(self, event: Event) -> None:
        """Tell the agent's machine what happened."""

    def leave(self, signal_name: str, reason: str = "") -> None:
        """Leave the run as after this signal."""

    def first_variables(self, assignment: Assignment) -> Mapping[str, str]:
        """Environment of the node's first worker, as far as the assignment and the node make it."""


class Feature:
    """Feature of one agent. Each hook does nothing unless a feature overrides it; they are called in the table's order.

    `options` are the feature's own, or None if it has no flags.
    """

    def __init__(self, kernel: Kernel, options: Any = None) -> None:
        self.kernel = kernel

    def began(self) -> None:
        """Take note that the agent is about to join."""

    def performing(self, effect: OwnEffect) -> bool:
        """Take note of what the machine wants done. True: that is done with it."""
        return False

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Take note that the server has answered a join or a poll, or refused it; the machine is told next."""

    def starting(self, assignment: Assignment) -> None:
        """Take note that a round has begun: its workers are to be started."""

    async def close(self) -> None:
        """End: the workers are gone, and their output has been shown."""


def load(name: str) -> Callable[..., Feature]:
    """The class of a feature by its `module:Class`."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Feature] = getattr(import_module(module), attribute)
    return found
