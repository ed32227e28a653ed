"""Hypothesis profiles, and the real programs that tests start.

`ci` tries the same examples on every machine and every day, as long as the sources and the collected tests are the
same. `quick` tries the first part of them, for `make check` and `make suite`. `thorough` tries more.
"""

import faulthandler
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from node_agent.kernel.processes.ports import ReservedPort
from rdzv_server.service import clock
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.etcd import Etcd, Shared, etcd_cluster, need_etcd
from tests.support.programs import ended_programs
from tests.support.worker_hub import WorkerHub

pytest_plugins = (
    "tests.support.cgroups",
    "tests.support.dead_workers",
    "tests.support.names_of_tests",
    "tests.support.order_of_tests",
    "tests.support.state_of_tests",
)

for profile, examples in (("ci", 100), ("quick", 50)):
    settings.register_profile(profile, derandomize=True, max_examples=examples, stateful_step_count=40, deadline=None)
settings.register_profile(
    "thorough",
    max_examples=2_000,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

gc.disable()  # until collection ends: it creates many objects and no garbage

# nohup, perf and a shell's background start the tests with ignored signals. Programs under test must not inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for signum in (signal.SIGQUIT, signal.SIGUSR2):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)


# Otherwise gRPC, which the tests of etcd load, writes a line to stderr in each later fork of this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Containers often set it. Programs under test write as those of a user who has not set it.
os.environ.pop("PYTHONUNBUFFERED", None)


UNIT_TESTS = Path(__file__).with_name("unit")
TORCH_S = 300.0
"""Limit in seconds of a test with torch, which it imports several times. Each import takes long on a busy machine."""


@pytest.fixture(scope="session", autouse=True)
def servers_of_this_process_never_wait_for_a_processor() -> Iterator[None]:
    """Turn off the processor check of servers in this process: their time is often set by the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "starved_s", lambda: 0.0)
        yield


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("torch"):
            if UNIT_TESTS in item.path.parents:
                item.add_marker(pytest.mark.xdist_group("torch"))  # one process imports torch for all of them
            if config.getoption("timeout") is None and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TORCH_S))
        # One process has the etcd of these tests: even while nothing happens it takes a hundredth of a processor.
        if "etcd_member" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("etcd"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Exclude the collected objects from garbage collection: they stay to the end."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a pytest with which pytest-xdist ignores `xdist_group`, so that fixtures are created again and again."""
    if hasattr(session.config, "workerinput") and session.config.getoption("loadgroup"):
        apart = [item for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
        if apart:
            raise pytest.UsageError(
                f"pytest-xdist does not keep groups of tests together, with pytest {pytest.__version__}"
            )


TIME_TO_END_S = 60.0
"""Seconds that a test has to end after its time limit has raised an exception, which code that waits may catch."""
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # nothing is captured yet


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process of a test that continues beyond its limit, with the stacks of all threads on stderr."""
    _watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Watch the end of a failed test too. pytest's own plug-in has stopped its watch."""
    if isinstance(node, pytest.Item):
        _watch(node)


def _watch(item: pytest.Item) -> None:
    marker, wanted_s = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    limit_s = marker.args[0] if marker else item.config.getini("timeout") if wanted_s is None else wanted_s
    if float(limit_s) > 0:
        faulthandler.dump_traceback_later(float(limit_s) + TIME_TO_END_S, exit=True, file=item.config.stash[STDERR])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and not find_spec("torch"):
        pytest.skip("torch is not installed")


@pytest.fixture
def unused_tcp_port_factory() -> Iterator[Callable[[], int]]:
    """pytest-asyncio's fixture, with ports that the kernel gives to no other program until the test has ended."""
    with ExitStack() as reserved:

        def reserve() -> int:
            port = ReservedPort()
            reserved.callback(port.release)
            return port.number

        yield reserve


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()


@pytest.fixture
async def programs() -> AsyncIterator[None]:
    """End every program that the test has started, and show its output if the test fails."""
    async with ended_programs():
        yield


@pytest.fixture
async def hub(programs: None, tmp_path: Path) -> AsyncIterator[WorkerHub]:
    async with WorkerHub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
async def cluster(hub: WorkerHub) -> AsyncIterator[Cluster]:
    """One server, and the agents that the test starts."""
    async with Cluster(hub) as cluster:
        await cluster.serve()
        yield cluster


@pytest.fixture(scope="module")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A cluster of one member, which ends with the module: idle for a minute it takes more time than to start."""
    need_etcd()
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as etcd:
        yield etcd


@pytest.fixture
def etcd(etcd_member: Etcd) -> Iterator[Etcd]:
    """A cluster of one member, which runs before and after the test."""
    etcd_member.check()
    yield etcd_member
    etcd_member.check()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def client(etcd: Etcd) -> AsyncIterator[Any]:
    from rdzv_server.storage.etcd_client import EtcdClient

    client = EtcdClient(etcd.addresses)
    yield client
    await client.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Return the prefix of the keys of this test."""
    return f"/{request.node.name}"


@pytest.fixture
def shared(client: Any, prefix: str) -> Shared:
    return Shared(client, prefix)
