"""Options from torchrun's flags and its `--rdzv-conf`, as our server understands them."""

import os
from dataclasses import dataclass

from msgspec.structs import replace
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.paths import DEFAULT_PORT
from torch.distributed.elastic.rendezvous import RendezvousParameters

from node_agent import words
from node_agent.cli.arguments import FLAGS, SETTINGS, make
from node_agent.cli.plan import CONNECT_TIMEOUT_S, NO_RUN_ID, first, settings
from node_agent.cli.plan import credentials as read_credentials
from node_agent.cli.rendezvous import endpoints
from node_agent.kernel.config import AgentConfig, Endpoint, Target, UsageError
from node_agent.kernel.core.command import Command
from node_agent.kernel.workers.nesting import is_part_of

OURS = {
    *("node_id", "connect_timeout", "token_file", "tls_ca", "tls_cert", "tls_key"),
    *("join_timeout", "last_call_timeout", "lease", "disconnect_grace", "scale_up", "rank_policy"),
    *("node_unit", "shrink_after", "fixed_nodes", "restart_backoff", "restart_backoff_max"),
}
"""Flags of node-agent for the server or the connection to it. The workers belong to torchrun's agent."""
RESTARTS_WITHOUT_END = 10_000_000
NO_RESTARTS_LEFT = -255
"""An exit code that no process has. A torchrun without restarts left ends the run with it."""
ENDPOINT = "PET_RDZV_ENDPOINT"
"""Variable that torchrun reads if the flag is missing, and that its workers inherit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """Options of torchrun's `--rdzv-*` flags, checked. Durations are in seconds."""

    backend: str
    servers: tuple[Endpoint, ...]
    """Addresses of the server, or of several servers, one of which leads."""
    credentials: Credentials
    agent: AgentConfig
    store_timeout_s: float
    """Seconds for the agents of a round to meet, and for one operation on their store: `read_timeout`, 60 by default.
    """
    close_timeout_s: float
    """Seconds for the run's end after this node's work is done: `close_timeout`, 30 by default."""


def read(params: RendezvousParameters) -> HandlerConfig:
    """Return the configuration that torchrun passes. Raises `ValueError` with one line that names the option.

    `join_timeout`, `last_call_timeout`, `read_timeout` and `close_timeout` are torchrun's own. `keep_alive_interval`
    times `keep_alive_max_attempt` is the lease. Ours are `disconnect_grace`, `scale_up`, `rank_policy`, `node_unit`,
    `shrink_after`, `fixed_nodes`, `restart_backoff`, `restart_backoff_max`, `connect_timeout`, `node_id`, `token_file`,
    `tls_ca`, `tls_cert` and `tls_key`. Other flags of node-agent are refused. Unknown options are ignored, as by
    torchrun's handlers.

    The restart budget is torchrun's `--max-restarts`, which every agent counts for itself and does not share. So the
    request to the server does not limit restarts, and an agent reports when it has none left.
    """
    # only torchrun's static backend has it
    conf = {key: value for key, value in params.config.items() if key != "timeout"}
    given = {
        "rdzv_endpoint": ("--rdzv-endpoint", params.endpoint),
        "rdzv_backend": ("--rdzv-backend", "rdzv-server"),
        "nnodes": ("--nnodes", (params.min_nodes, params.max_nodes)),
        "rdzv_conf": ("--rdzv-conf", conf),
    }
    try:
        if useless := sorted(key for key in conf if key in FLAGS and FLAGS[key].is_ours and key not in OURS):
            raise UsageError(words.torchrun.only_for_node_agent(useless[0]))
        arguments = make(given, terms={key: f"--rdzv-conf: {key}" for key in SETTINGS})
        servers = endpoints(arguments, DEFAULT_PORT)
        if is_part_of(os.environ, params.run_id, servers, is_inherited=os.environ.get(ENDPOINT) == params.endpoint):
            raise UsageError(words.torchrun.own_run(params.endpoint, params.run_id))
        asked, credentials = settings(arguments), read_credentials(arguments, Target(servers[0], tuple(servers[1:])))
    except UsageError as error:
        raise ValueError(str(error)) from None
    return HandlerConfig(
        backend=params.backend,
        servers=tuple(servers),
        credentials=credentials,
        agent=AgentConfig(
            command=Command(()),  # torchrun's agent has the workers
            join=JoinRequest(
                run_id=params.run_id,
                explicit_run_id=params.run_id != NO_RUN_ID,
                node_id=arguments.node_id or os.uname().nodename,
                local_world_size=1,
                addr=params.local_addr or "",
                settings=replace(asked, max_restarts=RESTARTS_WITHOUT_END, fatal_exit_codes=(NO_RESTARTS_LEFT,)),
                agent_id="",
                after_round=0,
                port=0,
            ),
            connect_timeout_s=first(arguments.connect_timeout, CONNECT_TIMEOUT_S),
        ),
        store_timeout_s=first(arguments.read_timeout, 60.0),
        close_timeout_s=first(arguments.close_timeout, 30.0),
    )
