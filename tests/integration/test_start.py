"""What an agent loads on the way to its first worker: these modules, and no other. See docs/adr/0021.

A module that joins them costs every start its import, and every node its memory. Whoever needs one sooner than the
first worker states it here, having measured (`python -m benchmarks launch memory`); what is needed later is imported
later.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.integration.programs import Program, Server

LOADING_AGENT = str(Path(__file__).with_name("loading_agent.py"))

STANDARD_LIBRARY = "argparse asyncio copy ctypes dataclasses errno fcntl gc math queue socket string subprocess typing"
"""With what it loads by itself."""

AGENT = """
    __main__ agent cli config console conversation credentials driver inotify link machine_loop meeting orphans output
    ports processes run_line scratch specs store_host workers
    commandline commandline.argument_types commandline.asked commandline.command commandline.config
    commandline.credentials commandline.fallbacks commandline.flags commandline.logs commandline.parser
    commandline.rdzv_conf commandline.rendezvous commandline.usage
    core core.backoff core.command core.effects core.environment core.events core.log_names core.log_options
    core.log_routes core.machine core.wording
    logs logs.agent_logs logs.destinations logs.folder logs.lines logs.round_logs
"""
PROTOCOL = "classes errors messages paths schema settings timing"
SERVER = """
    clock compaction connections driver rendezvous server service store timeouts turns
    waiters
    core core.admission core.blame core.completion core.effects core.events core.liveness core.machine core.ranks
    core.registry core.restarts core.run core.snapshot core.story
"""


def package(name: str, modules: str) -> set[str]:
    return {name, *(f"{name}.{module}" for module in modules.split())}


class Way(NamedTuple):
    """To the first worker: what is imported besides what every agent imports."""

    standard_library: str
    own: set[str]
    others: str = ""
    """How packages of others begin."""


ALONE = Way("", package("rdzv_server", SERVER) | {"node_agent.standalone", "protocol.text"})
AT_A_SERVER = Way(
    "concurrent.futures.thread datetime",
    {"node_agent.client", "node_agent.servers", "protocol.codec"},
    "h11 msgpack cython _cython",
)


HOSTING = AT_A_SERVER._replace(
    own=AT_A_SERVER.own - {"node_agent.servers"} | {"node_agent.hosting", "node_agent.this_machine"}
)


async def test_an_agent_alone_loads_nothing_that_its_first_worker_does_not_need(tmp_path: Path) -> None:
    assert await newcomers(ALONE, "--standalone", folder=tmp_path) == ""


async def test_nor_does_an_agent_at_a_server(tmp_path: Path) -> None:
    server = await Server.listen()
    try:
        assert await newcomers(AT_A_SERVER, "--endpoint", server.endpoint, folder=tmp_path) == ""
    finally:
        await server.end()


async def test_nor_does_one_that_hosts_the_server(unused_tcp_port: int, tmp_path: Path) -> None:
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{unused_tcp_port}")
    assert await newcomers(HOSTING, *place, folder=tmp_path) == ""


async def newcomers(way: Way, *flags: str, folder: Path) -> str:
    """What is loaded that is not stated above; and what is stated and not loaded, with a minus."""
    stated = package("node_agent", AGENT) | package("protocol", PROTOCOL) | way.own
    loaded = await loaded_at_the_first_worker(*flags, folder=folder) - loaded_by(
        f"{STANDARD_LIBRARY} {way.standard_library}"
    )
    others = tuple(way.others.split())
    loaded = {line for line in loaded if not line.removeprefix("dataclass ").startswith(others)}
    return " ".join(sorted(loaded - stated | {f"-{module}" for module in stated - loaded}))


async def loaded_at_the_first_worker(*flags: str, folder: Path) -> set[str]:
    script, note = folder / "worker.py", folder / "note"
    script.touch()
    agent = await Program.start(sys.executable, LOADING_AGENT, str(note), *flags, "--nproc", "2", str(script))
    assert await agent.exit_code() == 0, agent.err
    return set(note.read_text().splitlines())


def loaded_by(modules: str) -> set[str]:
    """Without `ssl`, which nobody asks for here: asyncio can do without."""
    program = f"import sys; sys.modules['ssl'] = None; import {', '.join(modules.split())}; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return set(told.stdout.split()) - {"ssl"}
