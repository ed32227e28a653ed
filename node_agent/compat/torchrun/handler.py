"""torch's rendezvous on our server: one agent and its server answer torchrun's elastic agent.

The nodes of a round meet at a TCPStore that exists only for this round. Each agent opens one before it joins, and sends
its port. Group rank 0's store becomes the round's, with MASTER_PORT for the workers. So a round never meets data of an
earlier round or waits for a future server, and the store moves with group rank 0.
"""

import atexit
import socket
import sys
import threading
import time
from datetime import timedelta

from msgspec.structs import replace
from rdzv_protocol.errors import Forbidden, ProtocolError, RunFailed, RunSucceeded, TlsRequired, Unauthorized
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import Assignment, Failure, Finish
from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch's docs say so
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.utils.logging import get_logger

from node_agent import words
from node_agent.compat.torchrun import options
from node_agent.compat.torchrun.agent_thread import AgentThread, Ended
from node_agent.compat.torchrun.options import NO_RESTARTS_LEFT
from node_agent.kernel.core.backoff import ServerLost
from node_agent.kernel.core.machine import LONGEST_REASON
from node_agent.kernel.failures.diagnose import failure_from_torch
from node_agent.servers.failover import Failover

STORE_CHECK_INTERVAL_S = 0.02
"""Seconds between two checks whether the round's other nodes are at the store. They are usually milliseconds apart."""
PROBE_TIMEOUT_S = 1.0

log = get_logger(
    "torch.distributed.elastic.rendezvous.rdzv_server"
)  # where torch looks for its own, and LOGLEVEL works


class RdzvServerHandler(RendezvousHandler):
    """One node's place in a run. The handler sends nothing before the first `next_rendezvous`.

    torchrun does not reveal its number of workers or its restart budget. So the status page shows one worker a node,
    and the server counts restarts without a limit. A torchrun without restarts left ends the run.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        """Read torchrun's options. Raises `ValueError` if they are invalid."""
        self._config = options.read(params)
        self._agent: AgentThread | None = None
        self._store: TCPStore | None = None
        self._group_rank = 0
        self._outer_error = sys.exception()

    def get_backend(self) -> str:
        return self._config.backend

    def get_run_id(self) -> str:
        return self._config.agent.join.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use an agent's store: always True, for they use the round's store too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and meet its other nodes. The workers of the last round must have ended.

        If the handler has not asked for this call (see `num_nodes_waiting`), it reports that a worker failed, so that
        every node restarts.

        Raises:

        - `SystemExit(0)` if the run has succeeded without this node, because torchrun 2.13 cannot end well after
          `RendezvousGracefulExitError`.
        - `RendezvousClosedError` if the run has failed.
        - `RendezvousTimeoutError` if the run stayed below its minimum.
        - `RendezvousConnectionError` if the server or the round's store cannot be reached.
        - `RendezvousError` if the server refuses this node.
        """
        agent = self._agent = self._agent or self._make_agent()
        try:
            while True:
                assignment = agent.next_round(self._unseen_failure())
                if info := self._meet(agent, assignment):
                    self._group_rank = assignment.group_rank
                    return info
        except Ended as end:
            raise _error(end) from None

    def num_nodes_waiting(self) -> int:
        """Return 1 when this node's workers must end: a node joined, left or failed, or the run has ended."""
        return int(self._agent is not None and self._agent.round_is_over.is_set())

    def is_closed(self) -> bool:
        return self._agent is not None and self._agent.ending is not None

    def set_closed(self) -> None:
        """End this node's part in the run, which has succeeded when every node has done so."""
        self.shutdown()

    def shutdown(self) -> bool:
        """Report how this node's workers ended, and wait at most `close_timeout` for the end of the run.

        Return whether the run has ended. torchrun calls this from a `finally`, so the exception in flight shows the
        result. Without an exception the workers succeeded. A worker's failure ends the run. After any other exception
        this node leaves and the others continue.
        """
        agent, self._agent = self._agent, None
        if agent is None:
            return True
        error = sys.exception()
        if error is None or error is self._outer_error:
            ended = agent.succeed(self._config.close_timeout_s)
        elif isinstance(error, ChildFailedError):
            ended = agent.fail(self._last_failure(error), self._config.close_timeout_s)
        else:
            ended = agent.leave(f"{type(error).__name__}: {error}"[:LONGEST_REASON])
        self._forget(agent)
        return ended

    # The agent.

    def _make_agent(self) -> AgentThread:
        atexit.register(self._leave_at_exit)
        servers = Failover([*self._config.servers], self._config.credentials, log.info)
        return AgentThread(self._config.agent, servers.transport, servers.name, self._open_store, log)

    def _leave_at_exit(self) -> None:
        """Leave the run at exit: after a signal torchrun exits without calling `shutdown`."""
        agent, self._agent = self._agent, None
        if agent:
            agent.leave(words.torchrun.TORCHRUN_EXITS)
            self._forget(agent)

    def _forget(self, agent: AgentThread) -> None:
        atexit.unregister(self._leave_at_exit)
        agent.stop()
        self._store = None

    # The round's store.

    def _open_store(self) -> int:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self._store.port

    def _meet(self, agent: AgentThread, assignment: Assignment) -> RendezvousInfo | None:
        """Return the round once all its nodes have met at its store, None if it is over before that.

        From then on torch's agents rely on each other: they wait for a missing one until the store's timeout.
        """
        deadline = time.monotonic() + self._config.store_timeout_s
        place = address(assignment.master_addr, assignment.master_port)
        try:
            if not _listens(assignment, agent.round_is_over, deadline):
                return None
            agents = PrefixStore("rdzv-server", self._store_of(assignment))  # separate from the workers' data
            if agents.add("arrivals", 1) == assignment.group_world_size:
                agents.set("complete", "1")
            while not agents.check(["complete"]):
                if agent.round_is_over.wait(STORE_CHECK_INTERVAL_S):
                    return None
                if time.monotonic() > deadline:
                    missing = assignment.group_world_size - agents.add("arrivals", 0)
                    raise RendezvousConnectionError(words.torchrun.nodes_missing(missing, assignment.round, place))
        except (OSError, DistError) as error:
            if agent.round_is_over.wait(max(0.0, deadline - time.monotonic())):
                return None  # its node is gone
            raise RendezvousConnectionError(
                words.torchrun.store_unreachable(place, str(error).splitlines()[0])
            ) from error
        master = RendezvousStoreInfo(assignment.master_addr, assignment.master_port)
        return RendezvousInfo(agents, assignment.group_rank, assignment.group_world_size, master)

    def _store_of(self, assignment: Assignment) -> TCPStore:
        timeout = timedelta(seconds=self._config.store_timeout_s)
        if assignment.group_rank > 0:
            self._store = TCPStore(assignment.master_addr, assignment.master_port, is_master=False, timeout=timeout)
        assert self._store
        self._store.set_timeout(timeout)
        return self._store

    # Failures.

    def _unseen_failure(self) -> Failure:
        """Return a worker failure without details: torchrun has restarts left, and does not name the worker or its
        error.
        """
        return Failure(
            node_id=self._config.agent.join.node_id,
            rank=self._group_rank,  # the node's only worker, as far as the server knows
            local_rank=0,
            pid=0,
            exit_code=1,
            cause=words.torchrun.WORKERS_RESTART,
            failed_at=time.time(),
        )

    def _last_failure(self, error: ChildFailedError) -> Failure:
        rank, failure = error.get_first_failure()
        found = failure_from_torch(rank, failure, self._config.agent.join.node_id)
        return replace(found, exit_code=NO_RESTARTS_LEFT, cause=words.torchrun.no_restarts_left(found.cause))


def _listens(assignment: Assignment, round_is_over: threading.Event, deadline: float) -> bool:
    """Return whether the round's store can be reached before the round is over. Raises `OSError` at the deadline.

    torch's own connect cannot be interrupted, and needs up to its timeout to find that the store is gone.
    """
    while not round_is_over.is_set():
        try:
            socket.create_connection((assignment.master_addr, assignment.master_port), PROBE_TIMEOUT_S).close()
            return True
        except OSError:
            if time.monotonic() > deadline:
                raise
            round_is_over.wait(STORE_CHECK_INTERVAL_S)
    return False


def _error(end: Ended) -> BaseException:
    """Return the exception that reports the agent's end to torchrun."""
    match end.finish or end.error:
        case Finish(succeeded=True) | RunSucceeded():
            log.info("%s", words.torchrun.succeeded_without(end))
            return SystemExit(0)
        case Finish(join_timed_out=True):
            return RendezvousTimeoutError(str(end))
        case Finish() | RunFailed():
            return RendezvousClosedError(str(end))
        case ServerLost() | Unauthorized() | Forbidden() | TlsRequired():
            return RendezvousConnectionError(str(end))
        case ProtocolError():
            return RendezvousError(str(end))
    return RendezvousStateError(words.torchrun.no_longer_part(end))
