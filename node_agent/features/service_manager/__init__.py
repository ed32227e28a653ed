"""Service manager, such as systemd: notified of the agent's state, if it runs the agent. It has no flags."""

from collections.abc import MutableMapping

from rdzv_protocol.service_manager import ServiceManager

from node_agent.kernel.config import Options


class ManagedService(Options, frozen=True, kw_only=True):
    """Service manager of this process."""

    feature = "node_agent.features.service_manager.feature:ManagedService"

    manager: ServiceManager | None = None

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "ManagedService":
        """Take the manager's variables out of the environment, which workers inherit."""
        return cls(manager=ServiceManager.of(environment))
