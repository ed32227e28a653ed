"""What torchrun's flags and its `--rdzv-conf` ask of our server."""

import os
from dataclasses import dataclass

from rdzv_protocol.paths import DEFAULT_PORT
from rdzv_protocol.settings import RequestedSettings
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

import node_agent.transport.tls  # noqa: F401 - while `protocol` is ours: it is imported late otherwise
from node_agent.config import AgentConfig
from node_agent.core.command import Command
from node_agent.transport.credentials import Credentials, TlsFiles

RESTARTS_WITHOUT_END = 10_000_000
NO_RESTARTS_LEFT = -255
"""An exit code that no process has: a torchrun whose own budget is spent ends the run with it."""
NO_RUN_ID = "none"
"""torchrun's `--rdzv-id` where none was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """`--rdzv-*`, checked. Durations are seconds."""

    backend: str
    host: str
    port: int
    others: tuple[tuple[str, int], ...]
    """Where further servers listen, of which one leads."""
    credentials: Credentials
    agent: AgentConfig
    store_timeout_s: float
    """`read_timeout`: how long the agents of a round may take to meet, and one operation on their store. 60."""
    close_timeout_s: float
    """`close_timeout`: how long the end of the run may take after this node's work is done. 30."""


def read(params: RendezvousParameters) -> HandlerConfig:
    """The configuration that torchrun hands over. Raises `ValueError` with one line that names the option.

    `join_timeout`, `last_call_timeout`, `read_timeout` and `close_timeout` are torchrun's own; `keep_alive_interval`
    times `keep_alive_max_attempt` is the lease. Ours besides: `disconnect_grace`, `scale_up`, `connect_timeout`,
    `node_id`, `token_file`, `tls_ca`, `tls_cert` and `tls_key`. Options that are not ours are left alone, as torchrun's
    handlers do.

    The run's restart budget is torchrun's `--max-restarts`, which every agent counts for itself and tells nobody. So
    the server is asked for restarts without end, and told when an agent has none left.
    """
    (host, port), *others = [parse_rendezvous_endpoint(each, DEFAULT_PORT) for each in params.endpoint.split(",")]
    return HandlerConfig(
        backend=params.backend,
        host=host,
        port=port,
        others=tuple(others),
        credentials=_credentials(params),
        agent=AgentConfig(
            command=Command(()),  # torchrun's agent has the workers
            nproc=1,
            run_id=params.run_id,
            explicit_run_id=params.run_id != NO_RUN_ID,
            node_id=params.get("node_id") or os.uname().nodename,
            local_addr=params.local_addr,
            settings=_settings(params),
            connect_timeout_s=_seconds(params, "connect_timeout", 300.0),
        ),
        store_timeout_s=_seconds(params, "read_timeout", 60.0),
        close_timeout_s=_seconds(params, "close_timeout", 30.0),
    )


def _settings(params: RendezvousParameters) -> RequestedSettings:
    return RequestedSettings(
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        max_restarts=RESTARTS_WITHOUT_END,
        fatal_exit_codes=(NO_RESTARTS_LEFT,),
        join_timeout_s=_asked(params, "join_timeout"),
        last_call_timeout_s=_asked(params, "last_call_timeout"),
        lease_s=_lease(params),
        disconnect_grace_s=_asked(params, "disconnect_grace"),
        scale_up=params.get("scale_up"),
    )


def _lease(params: RendezvousParameters) -> float | None:
    if params.get("keep_alive_interval") is None and params.get("keep_alive_max_attempt") is None:
        return None
    return _seconds(params, "keep_alive_interval", 5.0) * _seconds(params, "keep_alive_max_attempt", 3.0)


def _asked(params: RendezvousParameters, key: str) -> float | None:
    return None if params.get(key) is None else _seconds(params, key, 0.0)


def _seconds(params: RendezvousParameters, key: str, default: float) -> float:
    value = params.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 10**6:
        raise ValueError(f"--rdzv-conf {key}: a number from 0 to 1000000, not {value!r}")
    return number


def _credentials(params: RendezvousParameters) -> Credentials:
    ca, cert, key = (params.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    if (cert is None) != (key is None) or (cert is not None and ca is None):
        raise ValueError("--rdzv-conf: tls_cert and tls_key belong together, and with tls_ca")
    try:
        found = Credentials(params.get("token_file"), TlsFiles(ca, cert, key) if ca is not None else None)
    except ValueError as error:
        raise ValueError(f"--rdzv-conf token_file={error}") from None
    try:
        found.context()
    except ValueError as error:
        raise ValueError(f"--rdzv-conf {str(error).replace('--tls-', 'tls_')}") from None
    return found
