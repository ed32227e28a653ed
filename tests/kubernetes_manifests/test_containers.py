"""The containers of the manifests, as processes of this machine, with unchanged command lines, probes and hooks.

The tests act as a kubelet: variables, volumes, probes, the hook and the signals. They also act as a Job: names and
replacements. Names that a cluster's DNS would resolve are loopback here. A node has one worker, which reports to the
hub.
"""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import tls as tls_words

from node_agent import words
from rdzv_server.words import startup
from tests.kubernetes_manifests.manifests import Pod, PodTemplate, mine, need_kubectl, only, render, template
from tests.support.certificates import Authority
from tests.support.etcd import Etcd
from tests.support.message_search import has_message, pattern
from tests.support.process_info import is_running
from tests.support.programs import WORKER, Program, ended_programs
from tests.support.worker_hub import WorkerHub, of_agent, restart_count

UID = "6d0c3c1e-0f6f-4d34-9d0c-2f6b7a1e5c11"
UID_LABELS = ("batch.kubernetes.io/controller-uid", "jobset.sigs.k8s.io/jobset-uid")
ADDRESS = "rdzv-server:29400"
ISOLATED = """\
set -e
mount --make-rprivate /
mkdir -p "$1/image"
mount --bind / "$1/image"
mount -o remount,bind,ro "$1/image"
for path in proc dev sys; do mount --rbind "/$path" "$1/image/$path"; done
mount --bind "$1/pod" "$1/image$1/pod"
chown -R "$2:$2" "$1/pod"
image=$1/image uid=$2
shift 2
exec chroot "$image" setpriv --reuid="$uid" --regid="$uid" --clear-groups --no-new-privs \\
  --bounding-set=-all,+dac_read_search --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "$@"
"""
"""Shell program that runs a command as a user without rights, on a read-only root file system. The user may read every
file, because the interpreter may be in root's home."""


@pytest.fixture(autouse=True)
async def nothing_is_left(hub: WorkerHub) -> AsyncIterator[None]:
    need_kubectl()
    async with ended_programs():
        yield
    for worker in hub.all:
        await worker.gone()


# The server.


def server_pod(folder: str | Path, root: Path, port: int = 0, index: int = 0, **instead: str) -> Pod:
    """Return the server's pod, on a free port or this one, with tokens in their place."""
    here = {**instead, "--port=29400": f"--port={port}"}
    pod = Pod(template(folder, "rdzv-server").template, root, {"metadata.name": f"rdzv-server-{index}"}, instead=here)
    for name in ("agents", "readers", "admins"):
        path = pod.path(f"/tokens/{name}")
        path.write_text(f"for-{name}\n")
        path.chmod(0o440)
    return pod


async def port_of(server: Program) -> int:
    return int((await server.line(r"listening on port (\d+)"))[1])


def probe(pod: Pod, name: str, port: int) -> int:
    """Return the status of the kubelet's probe of this name. Like the kubelet, it does not verify certificates."""
    get = pod.container[f"{name}Probe"]["httpGet"]
    assert {"name": get["port"], "containerPort": 29400} in pod.container["ports"]
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    url = f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{port}{get['path']}"
    with urllib.request.build_opener(*handlers).open(url, timeout=30) as answer:
        return int(answer.status)


async def is_alive(pod: Pod, port: int) -> bool:
    names = ("startup", "readiness", "liveness")
    return [await asyncio.to_thread(probe, pod, name, port) for name in names] == [200, 200, 200]


async def test_the_servers_pod_is_replaced_and_the_run_continues(hub: WorkerHub, tmp_path: Path) -> None:
    server = server_pod("server", tmp_path / "server")
    program = await server.start()
    port = await port_of(program)
    assert await is_alive(server, port)
    node = KINDS[0].pod(tmp_path, f"127.0.0.1:{port}", 0, **{"--nnodes=2:3": "--nnodes=1"})
    agent = await node.start(**hub.env)
    (worker,) = await hub.group(1)
    await program.kill()
    again = await server_pod("server", tmp_path / "server", port=port).start()  # with the same volume
    await again.line(pattern(startup.state_in, runs=1))
    worker.order_exit(0)
    assert await agent.exit_code() == 0
    assert [line for line in agent.err if "round" in line] == [line for line in agent.err if "round 1:" in line]
    node.path("/token/token").write_text("another\n")
    unauthenticated = await node.start(PET_CONNECT_TIMEOUT="2")
    assert KINDS[0].action(await unauthenticated.exit_code()) == "FailJob"
    assert has_message(unauthenticated.err[-1], tls_words.wrong_token, at=f"127.0.0.1:{port}")


async def test_the_server_runs_unprivileged_on_a_read_only_root(tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    server = server_pod("server", tmp_path / "pod")
    uid = str(server.template["spec"]["securityContext"]["runAsUser"])
    program = await server.start("unshare", "--mount", "sh", "-c", ISOLATED, "isolated", str(tmp_path), uid)
    port = await port_of(program)
    root = f"/proc/{program.pid}/root"
    assert os.stat(f"/proc/{program.pid}").st_uid == int(uid)
    assert os.statvfs(root).f_flag & os.ST_RDONLY
    assert await is_alive(server, port)
    assert server.path("/state/runs.db").exists()
    program.signal(signal.SIGTERM)
    assert await program.exit_code() == 0
    assert not any("Error" in line or "denied" in line for line in program.err), program.err


async def test_the_server_speaks_tls_where_that_is_added(hub: WorkerHub, tmp_path: Path, authority: Authority) -> None:
    server = server_pod(mine(tmp_path, "server", "tls"), tmp_path / "server")
    pair = authority.issue("pair", "127.0.0.1")
    for name, file in (("tls.crt", pair.cert), ("tls.key", pair.key)):
        shutil.copy(file, server.path(f"/tls/{name}"))
    program = await server.start()
    port = await port_of(program)
    assert await is_alive(server, port)
    node = KINDS[0].pod(tmp_path, f"127.0.0.1:{port}", 0, **{"--nnodes=2:3": "--nnodes=1"})
    agent = await node.start(**hub.env, PET_TLS_CA=authority.ca)
    (await hub.group(1))[0].order_exit(0)
    assert await agent.exit_code() == 0


async def test_several_servers_take_over_from_one_another(
    hub: WorkerHub, tmp_path: Path, etcd: Etcd, unused_tcp_port_factory: Callable[[], int]
) -> None:
    pods, endpoints = [], []
    for index in range(2):
        port = unused_tcp_port_factory()
        endpoints.append(f"127.0.0.1:{port}")
        instead = {
            "etcd-client:2379": ",".join(etcd.addresses),
            f"rdzv-server-{index}.rdzv-servers:29400": endpoints[index],
        }
        pods.append(server_pod("server-etcd", tmp_path / str(index), port, index, **instead))
    servers = [await pods[0].start()]
    await servers[0].line("leading: ")
    servers.append(await pods[1].start())
    await servers[1].line("following")
    for pod, endpoint in zip(pods, endpoints, strict=True):
        assert await is_alive(pod, int(endpoint.rpartition(":")[2])), "a budget would block every drain of the others"
    node = KINDS[0].pod(tmp_path / "node", ",".join(endpoints), 0, **{"--nnodes=2:3": "--nnodes=1"})
    agent = await node.start(**hub.env)
    (worker,) = await hub.group(1)
    servers[0].signal(signal.SIGTERM)
    await servers[1].line("leading: ")
    worker.order_exit(0)
    assert await agent.exit_code() == 0


# Nodes.


def node_pod(
    node: PodTemplate, root: Path, instead: Mapping[str, str], *, args: Sequence[str] | None = None, **environment: str
) -> Pod:
    """Return a node's pod, with its token in place, and the test's worker instead of the script."""
    fields = {f"metadata.labels['{label}']": UID for label in UID_LABELS}
    here = {
        "train.py": WORKER,
        "--nproc-per-node=8": "--nproc-per-node=1",
        "--shutdown-timeout=40": "--shutdown-timeout=20",
        **instead,
    }
    pod = Pod(node.template, root, fields, environment, here, args)
    pod.path("/token/token").write_text("for-agents\n")
    return pod


@dataclass(frozen=True)
class Kind:
    """A way to run: where its nodes are described, and how they find the server."""

    folder: str
    name: str
    server: str
    server_folder: str = "server"

    def pod(self, root: Path, endpoint: str, index: int, **instead: str) -> Pod:
        environment = {
            "PET_NODE_ID": f"train-{index}",
            "JOB_COMPLETION_INDEX": str(index),
        }  # the first is the host name
        args = None
        if self.folder == "runs/kubeflow":
            trainer = only(render(self.folder), "TrainJob")["spec"]["trainer"]
            args = trainer["args"]
            environment |= {  # as Trainer's plug-in for torch sets them
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": "1",
                "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": "train-node-0-0.train",
                "PET_MASTER_PORT": "29400",
            }
        here = {self.server: endpoint, **instead}
        return node_pod(template(self.folder, self.name), root / str(index), here, args=args, **environment)

    def action(self, exit_code: int) -> str:
        """Return the Job's action for a pod that ended with this exit code without an eviction."""
        job = template(self.folder, self.name).job
        assert job
        for rule in job["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule:
                assert (rule["onExitCodes"]["operator"], rule["onExitCodes"]["containerName"]) == ("In", "node")
                if exit_code in rule["onExitCodes"]["values"]:
                    return str(rule["action"])
        return "Count"


KINDS = [
    Kind("runs/indexed-job", "train", ADDRESS),
    Kind("runs/jobset", "node", "train-server-0-0.train:29400", "runs/jobset"),
    Kind("runs/kubeflow", "node", ADDRESS),
]


def only_kind(folder: str) -> Kind:
    (kind,) = (kind for kind in KINDS if kind.folder == folder)
    return kind


each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.folder)


async def serve(kind: Kind, root: Path) -> tuple[Program, str]:
    """Return the server of this kind of run, and its address."""
    if kind.server_folder == "server":
        pod = server_pod("server", root)
    else:
        pod = Pod(template(kind.server_folder, "server").template, root, instead={"--port=29400": "--port=0"})
        pod.path("/token/token").write_text("for-agents\n")
    program = await pod.start()
    return (
        program,
        f"{socket.gethostname()}:{await port_of(program)}",
    )  # loopback is refused if several nodes are known


@each_kind
async def test_a_run_continues_when_a_node_leaves_and_when_one_is_lost(
    kind: Kind, hub: WorkerHub, tmp_path: Path
) -> None:
    server, endpoint = await serve(kind, tmp_path / "server")
    pods = [kind.pod(tmp_path, endpoint, index) for index in range(4)]
    assert not await pods[0].is_ready()
    agents = [await pod.start(**hub.env) for pod in pods[:3]]
    first = await hub.group(3)
    assert first[0].argv == ["--epochs=90"]
    agents.append(await pods[3].start(**hub.env))
    await agents[3].line("standing by")
    for pod in pods:
        await pod.becomes_ready()  # also the spare: gang schedulers evict what does not become ready

    leaving = agents[0]
    (worker,) = of_agent(first, leaving.pid)
    assert await pods[0].exec(pods[0].container["lifecycle"]["preStop"]) == 0
    assert kind.action(await leaving.exit_code()) == "Ignore", "a node that leaves neither ends the run nor counts"
    assert not await pods[0].is_ready()
    second = await hub.group(3)
    assert agents[3].pid in {worker.agent_pid for worker in second}, "the spare has not taken its place"

    await agents[1].kill()
    assert kind.action(128 + signal.SIGKILL) != "FailJob"
    third = await hub.group(2)
    agents[1] = await pods[1].start(**hub.env)  # the Job's replacement, of the same name
    fourth = await hub.group(3)
    assert [restart_count(workers) for workers in (second, third, fourth)] == [0, 0, 0]
    for worker in fourth:
        worker.order_exit(0)
    assert [await agent.exit_code() for agent in agents[1:]] == [0, 0, 0]
    if kind.server_folder != "server":
        assert await server.exit_code() == 0, "the server of the run's own would keep the JobSet from its end"


async def test_a_run_with_its_own_server_continues_after_all_its_nodes_were_evicted(
    hub: WorkerHub, tmp_path: Path
) -> None:
    """The server ends with the last node, as a failure. The kubelet starts its container again, before other nodes
    come."""
    kind = only_kind("runs/jobset")
    server, endpoint = await serve(kind, tmp_path / "server")
    nodes = {"--nnodes=2:3": "--nnodes=2"}
    pods = [kind.pod(tmp_path, endpoint, index, **nodes) for index in range(2)]
    agents = [await pod.start(**hub.env) for pod in pods]
    await hub.group(2)
    for pod in pods:
        await pod.becomes_ready()
        assert await pod.exec(pod.container["lifecycle"]["preStop"]) == 0
    assert {kind.action(await agent.exit_code()) for agent in agents} == {"Ignore"}
    assert await server.exit_code() == ExitCode.FAILED
    server, endpoint = await serve(kind, tmp_path / "server")
    await server.line(pattern(startup.state_in, runs=1))
    agents = [await kind.pod(tmp_path, endpoint, index, **nodes).start(**hub.env) for index in range(2)]
    for worker in await hub.group(2):
        worker.order_exit(0)
    assert [await agent.exit_code() for agent in agents] == [0, 0]
    assert await server.exit_code() == 0


@each_kind
async def test_a_run_that_fails_ends_its_job(kind: Kind, hub: WorkerHub, tmp_path: Path) -> None:
    _, endpoint = await serve(kind, tmp_path / "server")
    instead = {"--max-restarts=3": "--max-restarts=0"}
    agents = [await kind.pod(tmp_path, endpoint, index, **instead).start(**hub.env) for index in range(3)]
    (await hub.group(3))[0].order_exit(7)
    assert {kind.action(await agent.exit_code()) for agent in agents} == {"FailJob"}
    mistaken = kind.pod(tmp_path, endpoint, 3, **{"--max-restarts=3": "--max-restarts=some"})
    assert kind.action(await (await mistaken.start()).exit_code()) == "FailJob"


# A group never ends: its shell stays when the agent has ended.


async def test_a_leader_hosts_the_server_of_its_group_and_pods_stay_when_the_run_is_over(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int
) -> None:
    group = template("runs/leaderworkerset", "train")
    pods = [
        node_pod(
            group,
            tmp_path / str(index),
            {"--master-port=29400": f"--master-port={unused_tcp_port}", "--nnodes=2:": "--nnodes="},
            LWS_LEADER_ADDRESS="127.0.0.1",
            LWS_GROUP_SIZE="2",
            LWS_WORKER_INDEX=str(index),
            PET_NODE_ID=f"train-0-{index}",
        )
        for index in range(2)
    ]
    agents = [await pod.start(**hub.env) for pod in pods]
    workers = await hub.group(2)
    for pod in pods:
        await pod.becomes_ready()
    for worker in workers:
        worker.order_exit(0)
    for agent in agents:
        await agent.line("node-agent ended with exit code 0")
    assert [await pod.is_ready() for pod in pods] == [False, False]
    for pod, agent in zip(pods, agents, strict=True):
        assert await pod.exec(pod.container["lifecycle"]["preStop"]) == 0
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == 0


async def test_a_shell_between_the_kubelet_and_the_agent_does_not_keep_it_from_leaving(
    hub: WorkerHub, tmp_path: Path, unused_tcp_port: int
) -> None:
    """It also does not stay when the agent has left: the kubelet is to start the container again."""
    pod = node_pod(
        template("runs/leaderworkerset", "train"),
        tmp_path,
        {"--master-port=29400": f"--master-port={unused_tcp_port}", "--nnodes=2:": "--nnodes=1:"},
        LWS_LEADER_ADDRESS="127.0.0.1",
        LWS_GROUP_SIZE="1",
        LWS_WORKER_INDEX="0",
    )
    shell = await pod.start(**hub.env)
    (worker,) = await hub.group(1)
    await worker.tell("ignore SIGTERM")
    hook = asyncio.create_task(pod.exec(pod.container["lifecycle"]["preStop"]))
    await shell.line(pattern(words.leaving.leaving, why="SIGTERM"))
    assert is_running(worker.pid) and not hook.done(), "the kubelet's own SIGTERM would cut the workers' grace short"
    worker.kill()
    assert await hook == 0
    assert await shell.exit_code() == ExitCode.START_AGAIN
