"""The port of an agent's metrics."""

import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node_agent.features.metrics import Metrics
from node_agent.features.metrics.feature import AgentMetrics
from node_agent.kernel.feature import Kernel
from tests.support.console import FakeConsole


async def test_the_metrics_host_is_resolved_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer must not block the agent's event loop."""
    answer, asked_by = socket.getaddrinfo, list[threading.Thread]()

    def asked(*args: Any, **kwargs: Any) -> Any:
        asked_by.append(threading.current_thread())
        return answer(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    kernel = cast(Kernel, SimpleNamespace(console=FakeConsole()))
    metrics = AgentMetrics(kernel, Metrics(metrics_port=("localhost", 0)))
    await metrics.open()
    await metrics.close()
    assert asked_by and threading.main_thread() not in asked_by
