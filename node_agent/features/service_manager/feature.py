"""Feature: notifies the service manager when the agent is ready, what it does, and before it ends."""

import asyncio

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Reply

from node_agent.features import service_manager
from node_agent.kernel.core.effects import Log, OwnEffect
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.runner import CRASH_MARGIN_S


class ManagedService(Feature):
    """Notifications to the manager."""

    def __init__(self, kernel: Kernel, options: service_manager.ManagedService) -> None:
        super().__init__(kernel)
        assert options.manager
        self._manager = options.manager

    def began(self) -> None:
        self._manager.watch(asyncio.get_running_loop().call_later)

    def performing(self, effect: OwnEffect) -> bool:
        if isinstance(effect, Log):
            self._manager.status(effect.text)
        return False

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply):
            self._manager.ready()  # the server has let the agent in: it waits, is a spare or has workers

    def leaving(self) -> None:
        self._manager.stopping(self.kernel.config.shutdown_timeout_s + CRASH_MARGIN_S)

    def ended(self, exit_code: ExitCode) -> None:
        self.leaving()
