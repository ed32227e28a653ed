"""Places at which the workers of a node cannot meet the others."""

import asyncio
import os
import socket
from errno import ENETUNREACH
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent.features import words
from node_agent.features.master_addr_check import MasterAddrCheck, why_unreachable
from node_agent.kernel.processes.ports import ReservedPort

HERE, ELSEWHERE = "127.0.0.1", "198.51.100.7"


@pytest.fixture
def free() -> int:
    """A port that no process of this machine has."""
    port = ReservedPort()
    port.release()
    return port.number


def test_an_own_address_is_another_machines_if_no_process_here_has_the_port(free: int) -> None:
    assert why_unreachable(HERE, free) == words.master_is_here(HERE)


@pytest.mark.parametrize("host", [HERE, "localhost"])
def test_agents_of_one_machine_share_its_address(host: str, unused_tcp_port: int) -> None:
    assert why_unreachable(host, unused_tcp_port) == ""


def test_a_port_that_this_user_may_not_have_shows_nothing(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, address: tuple[str, int]) -> None:
        if address[1] == free:
            raise PermissionError

    monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"bind": refuse}))
    assert why_unreachable(HERE, free) == ""


def test_an_address_without_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(ENETUNREACH, os.strerror(ENETUNREACH))

    monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"connect": refuse}))
    assert why_unreachable(ELSEWHERE, 1) == words.no_route_to_master(ELSEWHERE, os.strerror(ENETUNREACH))


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert why_unreachable("rank-0", 1) == words.master_unknown("rank-0", "Name or service not known")


async def test_each_reason_is_logged_once_but_never_on_the_node_of_rank_0(free: int) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    kernel: Any = SimpleNamespace(console=SimpleNamespace(log=lambda text, level: said.put_nowait(text)))
    feature = MasterAddrCheck(kernel)

    async def starts(group_rank: int, host: str) -> None:
        kernel.assignment = SimpleNamespace(group_rank=group_rank, master_addr=host, master_port=free)
        feature.started(kernel.assignment, {})
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    for group_rank, host in ((0, HERE), (1, HERE), (1, HERE), (2, "127.0.0.2")):
        await starts(group_rank, host)
    assert [said.get_nowait() for _ in range(said.qsize())] == [
        words.master_is_here(HERE), words.master_is_here("127.0.0.2")
    ]  # fmt: skip
