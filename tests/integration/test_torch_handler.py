"""Requests of torch's elastic agent to a rendezvous handler, made to ours with a real server.

The cases are those of torch's own tests: joining, joining late, spares, re-rendezvous, closing, keep-alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

import pytest
from rdzv_protocol.messages import JoinRequest, Reply, Start
from rdzv_protocol.words import flags, tls

from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.auth.tls_config import TlsFiles
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.words import completion, http, runs
from tests.support.certificates import Authority
from tests.support.lazy_modules import LazyModule
from tests.support.message_search import pattern

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch")]

errors = LazyModule("torch.distributed.elastic.multiprocessing.errors")
elastic = LazyModule("torch.distributed.elastic.rendezvous")
registry = LazyModule("torch.distributed.elastic.rendezvous.registry")

PATIENCE_S = 20.0
MONITOR_INTERVAL_S = 0.05


class Site:
    """A server, and handlers of one run of it, made as torchrun makes them."""

    def __init__(self, endpoint: str, server: RendezvousServer | None = None) -> None:
        self.endpoint = endpoint
        self.server = server
        self.handlers: list[RendezvousHandler] = []

    def handler(self, nnodes: str = "2", **conf: object) -> RendezvousHandler:
        low, _, high = nnodes.partition(":")
        conf = {"join_timeout": 100, "last_call_timeout": 100, "timeout": 900, **conf}
        params = elastic.RendezvousParameters(
            "rdzv-server", self.endpoint, "nightly", int(low), int(high or low), **conf
        )
        self.handlers.append(registry.get_rendezvous_handler(params))
        return self.handlers[-1]

    async def joined(self, number: int, nnodes: str = "2", **conf: object) -> list[RendezvousHandler]:
        """Return the handlers of a running round, by rank."""
        handlers = [self.handler(nnodes, **conf) for _ in range(number)]
        infos = await rendezvous(*handlers)
        return [handler for _, handler in sorted(zip(infos, handlers, strict=True), key=lambda pair: pair[0].rank)]

    async def knows(self, number: int) -> None:
        """Return when the server knows this number of agents of the run."""
        assert self.server
        rendezvous = self.server.rendezvous
        await until(lambda: sum(len(run.agents) for run in rendezvous.runs()) == number)


@asynccontextmanager
async def serving(tls: SSLContext | None = None, access: Access | None = None) -> AsyncIterator[Site]:
    async with RendezvousServer() as server:
        listener = bind("127.0.0.1", 0)
        await server.listen(listener, tls, access)
        site = Site(f"127.0.0.1:{listener.getsockname()[1]}", server)
        try:
            yield site
        finally:
            await asyncio.gather(*(dismiss(handler) for handler in site.handlers))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


SILENT_JOIN = JoinRequest(
    run_id="nightly", agent_id="silent", node_id="silent", after_round=0, addr="127.0.0.1", port=9,
    local_world_size=1, node_rank=0, explicit_run_id=True,
)  # fmt: skip


async def rendezvous(*handlers: RendezvousHandler) -> list[RendezvousInfo]:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*(asyncio.to_thread(handler.next_rendezvous) for handler in handlers))


def waiting(handler: RendezvousHandler) -> asyncio.Task[RendezvousInfo]:
    """Start a rendezvous that takes its time."""
    return asyncio.create_task(asyncio.to_thread(next_rendezvous, handler))


def next_rendezvous(handler: RendezvousHandler) -> RendezvousInfo:
    """A task cannot end with `SystemExit`: it would end the tests."""
    try:
        return handler.next_rendezvous()
    except SystemExit as end:
        raise Exited(end.code) from None


class Exited(Exception):
    pass


async def asked_to_restart(*handlers: RendezvousHandler) -> None:
    """Poll as torch's agent does, until every handler says that its workers must end."""
    await until(lambda: all(handler.num_nodes_waiting() for handler in handlers))


async def until(holds: Callable[[], bool]) -> None:
    """Poll in a thread beside the server's, as torch's agent does."""

    def look() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(MONITOR_INTERVAL_S)

    await asyncio.to_thread(look)


async def close(*handlers: RendezvousHandler, error: BaseException | None = None) -> list[bool]:
    """Shut down as torch's launcher does: in a `finally`, with the exception."""

    def launch(handler: RendezvousHandler) -> bool:
        try:
            if error:
                raise error
        finally:
            return handler.shutdown()  # noqa: B012

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*(asyncio.to_thread(launch, handler) for handler in handlers))


async def dismiss(handler: RendezvousHandler) -> None:
    await close(handler, error=KeyboardInterrupt())


def worker_failure(exit_code: int) -> ChildFailedError:
    failure = errors.ProcessFailure(local_rank=1, pid=99, exitcode=exit_code, error_file="-")
    return errors.ChildFailedError("train.py", {1: failure})


async def test_nodes_get_ranks_and_meet_at_one_store(site: Site) -> None:
    first, second = site.handler(), site.handler()
    assert (first.get_backend(), first.get_run_id(), first.use_agent_store) == ("rdzv-server", "nightly", True)
    infos = await rendezvous(first, second)
    assert sorted((info.rank, info.world_size) for info in infos) == [(0, 2), (1, 2)]
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert [handler.num_nodes_waiting() for handler in (first, second)] == [0, 0]
    assert not first.is_closed()


async def test_each_round_has_a_store_of_its_own(site: Site) -> None:
    handlers = [site.handler(), site.handler()]
    first = await rendezvous(*handlers)
    first[0].store.set("key", "value")
    second = await rendezvous(*handlers)
    assert port(first[0]) != port(second[0])
    assert not second[0].store.check(["key"])
    assert [info.rank for info in first] == [info.rank for info in second], "ranks are sticky"


async def test_a_latecomer_makes_the_others_restart_and_gets_a_place(site: Site) -> None:
    both = await site.joined(2, "1:3", last_call_timeout=0.5)
    third = waiting(site.handler("1:3", last_call_timeout=0.5))
    await asked_to_restart(*both)
    infos = [*await rendezvous(*both), await third]
    assert [info.rank for info in infos] == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}


async def test_a_spare_waits_quietly_and_takes_the_place_of_a_node_that_leaves(site: Site) -> None:
    stays, goes = await site.joined(2)
    spare = waiting(site.handler())
    await site.knows(3)
    assert (stays.num_nodes_waiting(), goes.num_nodes_waiting(), spare.done()) == (0, 0, False)
    await dismiss(goes)
    await asked_to_restart(stays)
    (info,) = await rendezvous(stays)
    assert (info.rank, (await spare).rank, info.world_size) == (0, 1, 2)


async def test_a_node_that_leaves_while_its_workers_stop_says_why(site: Site) -> None:
    """The agent does not report that its work is done."""
    stays, goes = await site.joined(2, "1:3", last_call_timeout=0.5)
    third = waiting(site.handler("1:3", last_call_timeout=0.5))
    await asked_to_restart(stays, goes)
    await close(goes, error=RuntimeError("no disk"))
    await rendezvous(stays)
    await third
    assert site.server
    (run,) = site.server.rendezvous.runs()
    assert [departure.cause for departure in run.departures] == ["RuntimeError: no disk"]


async def test_an_unrequested_rendezvous_restarts_the_others(site: Site) -> None:
    one, other = await site.joined(2)
    again = waiting(one)
    await asked_to_restart(other)
    (info,) = await rendezvous(other)
    assert ((await again).rank, info.rank) == (0, 1)


async def test_the_run_succeeds_when_every_node_has_shut_down(site: Site) -> None:
    both = await site.joined(2)
    spare = waiting(site.handler())
    await site.knows(3)
    assert await close(*both) == [True, True]
    with pytest.raises(Exited, match="0"):
        await spare
    with pytest.raises(Exited, match="0"):
        await waiting(site.handler())


async def test_an_early_node_gives_up_waiting_for_the_others(site: Site) -> None:
    early, late = await site.joined(2, "1:2", close_timeout=0.3)
    assert await close(early) == [False]
    assert await close(late) == [True], "the early node's success is remembered"


async def test_success_within_the_handling_of_another_error_is_success(site: Site) -> None:
    def launch() -> bool:
        try:
            raise KeyError("the user's own")
        except KeyError:
            handler = site.handler("1")
            handler.next_rendezvous()
            return handler.shutdown()

    assert await asyncio.to_thread(launch)


async def test_a_failure_without_restarts_left_closes_the_run(site: Site) -> None:
    one, other = await site.joined(2, "1:2")
    assert await close(one, error=worker_failure(7)) == [True]
    await asked_to_restart(other)
    assert other.is_closed()
    with pytest.raises(
        elastic.RendezvousClosedError, match=r"worker rank 1 on node .* failed: exit code 7, and torchrun"
    ):
        await rendezvous(other)


async def test_a_failure_without_restarts_left_closes_the_run_also_when_it_comes_second(site: Site) -> None:
    one, other = await site.joined(2)
    restarting = waiting(one)
    await asked_to_restart(other)
    await close(other, error=worker_failure(-11))
    with pytest.raises(elastic.RendezvousClosedError, match=r"signal 11 \(SIGSEGV\)"):
        await restarting


async def test_set_closed_is_a_success_of_this_node(site: Site) -> None:
    (alone,) = await site.joined(1, "1")
    await asyncio.to_thread(alone.set_closed)
    with pytest.raises(Exited, match="0"):
        await waiting(site.handler("1"))


async def test_shutdown_of_a_handler_that_never_joined_does_not_send_a_request() -> None:
    assert await close(Site("nowhere.invalid:1").handler()) == [True]


async def test_below_the_minimum_the_join_times_out(site: Site) -> None:
    with pytest.raises(
        elastic.RendezvousTimeoutError, match=f"{runs.join_timeout(completion.waiting_for(1))}: 1 of 2 joined"
    ):
        await rendezvous(site.handler(join_timeout=0.3))


async def test_other_settings_are_refused(site: Site) -> None:
    await site.joined(1, "1")
    with pytest.raises(elastic.RendezvousError, match=flags.other_setting("--nnodes", "1", "2")):
        await rendezvous(site.handler())


async def test_an_unreachable_server_is_reported(unused_tcp_port: int) -> None:
    handler = Site(f"127.0.0.1:{unused_tcp_port}").handler(connect_timeout=0.2)
    with pytest.raises(elastic.RendezvousConnectionError, match=r"no rdzv-server at 127.0.0.1:\d+ within 0.2 s"):
        await rendezvous(handler)
    await dismiss(handler)


async def test_a_server_that_asks_for_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    async with serving(access=Access([Token(Role.AGENT, b"open-sesame")])) as site:
        with pytest.raises(elastic.RendezvousConnectionError, match="token"):
            await rendezvous(site.handler("1"))
        (info,) = await rendezvous(site.handler("1", token_file=str(tmp_path / "token")))
        assert info.world_size == 1


async def test_a_server_that_speaks_tls(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with serving(TlsFiles(*authority.issue("server"), authority.ca).context()) as site:
        for conf, says in (
            ({}, http.SPEAKS_TLS),
            ({"tls_ca": other.ca}, tls.other_authority("--rdzv-conf: tls_ca", other.ca)),
            ({"tls_ca": authority.ca}, tls.asks_for_certificate("--rdzv-conf: tls_cert", "--rdzv-conf: tls_key")),
        ):
            with pytest.raises(elastic.RendezvousConnectionError, match=pattern(says)):
                await rendezvous(site.handler("1", **conf))
        node = authority.issue("node", "node")
        (info,) = await rendezvous(site.handler("1", tls_ca=authority.ca, tls_cert=node.cert, tls_key=node.key))
        assert info.world_size == 1


async def test_a_silent_node_is_lost_with_its_lease_and_no_node_waits_for_it_at_the_store(site: Site) -> None:
    """The node of rank 0 falls silent: no keep-alive, no store. The other one forms the next round by itself."""
    conf: dict[str, Any] = {"keep_alive_interval": 3, "keep_alive_max_attempt": 2}  # torch's sockets may ask a slow DNS
    host, _, server_port = site.endpoint.partition(":")
    silent = HttpTransport(host, int(server_port), None)
    live = waiting(site.handler("1:2", **conf))
    await site.knows(1)
    reply = await silent.exchange(SILENT_JOIN)
    assert isinstance(reply, Reply) and isinstance(reply.directive, Start)
    info = await live
    assert (info.rank, info.world_size) == (0, 1)
    await silent.close()


def port(info: RendezvousInfo) -> int:
    assert info.bootstrap_store_info
    return info.bootstrap_store_info.master_port
