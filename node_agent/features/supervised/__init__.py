"""Supervisor of the agent (`--exit-with-run`): forwards signals to the agent, and knows the agent's part in its run."""

from msgspec import Struct

from node_agent.kernel.config import Options


class Supervised(Options, frozen=True, kw_only=True):
    """The agent's end of the link between it and its supervisor. Only the supervisor sets it; it has no flags."""

    feature = "node_agent.features.supervised.feature:Supervised"

    link: int = -1
    """Descriptor of a socket, -1 if there is no supervisor. The supervisor sends one byte with the number of each
    signal. The agent sends its `Part` whenever that changes."""


class Part(Struct, frozen=True):
    """Part that an agent takes in its run. The agent sends it to its supervisor, as a line of JSON."""

    attempt: int = 0
    """Number of the run's attempt, 0 if no server has answered yet."""
    agent_id: str = ""
    secret: str = ""
