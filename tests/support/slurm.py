"""A real Slurm on this machine: a login node with slurmctld and munged, and compute nodes with a slurmd each.

    with slurm_cluster(folder, nodes=3) as slurm:  # skips without Slurm, root or namespaces
        job = slurm.submit("--nodes=2", "job.sbatch", "train.py")
        assert await slurm.ended(job) == "COMPLETED"

For its programs, each node is a separate machine. It has a host name (n1, n2, ..., login), which all nodes resolve, and
processes, which `lose` ends together. The nodes of a cluster share a network that no other cluster can reach, so ports
may be fixed. The file system is this machine's. Jobs find `node-agent`, `rdzv-server` and this interpreter on PATH.

Programs that talk to Slurm must run on the login node. `slurm.call("squeue")` does that and returns the output.
`Program.start(*slurm.on_login("torchx", "run", "-s", "slurm", ...), env=slurm.env)` starts one, in the current folder.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PATIENCE_S = 120.0
LOGIN = "login"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter")
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
FIRST_PORT = 7001

# cred_expire: a requeued job waits that long, by default two minutes.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={login}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/slurmctld
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
TopologyPlugin=topology/tree
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
BatchStartTimeout=10
KillWait=5
MinJobAge=3600
NodeName={nodes} CPUs=4 Port=[{first}-{last}] State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
PartitionName=preemptable Nodes=ALL MaxTime=INFINITE GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""
LOGIN_NODE = """\
mount --bind hosts /etc/hosts
hostname "$0"
ip link set lo up
for address; do ip address add "$address/24" dev lo; done
echo ready
exec sleep infinity
"""
"""Process that holds the namespaces. Its addresses are not loopback: without such addresses the C library does not
resolve others.
"""
COMPUTE_NODE = """\
mount --bind hosts /etc/hosts && hostname "$0" || exit
slurmd -D -N "$0" &
while :; do sleep 3600 & wait $!; done
"""
"""First process of a node: adopts the orphans of slurmd's children."""


class Slurm:
    """A Slurm with the compute nodes `nodes`. Its files and logs are in `folder`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, size + 1)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**inherited, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        """Environment of programs on the login node, and of jobs."""
        self._addresses = {name: f"10.29.0.{number}" for number, name in enumerate([LOGIN, *self.nodes], start=1)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[str, Path] = {}
        """File of each job's output, by its id. It stays the same, and each question to Slurm is a program."""

    def start(self) -> None:
        """Start all of it. Return when every node is idle."""
        self._write_files()
        namespaces = ("unshare", "--net", "--uts", "--mount")
        self._run("login", *namespaces, "sh", "-ec", LOGIN_NODE, LOGIN, *self._addresses.values())
        self._wait(lambda: "ready" in (self.folder / "login.out").read_text())
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        munged = ("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self._run("munged", *self.on_login(*munged))
        self._wait((self.folder / "munge.socket").exists)
        self._start_controller()
        for node in self.nodes:
            self.boot(node)
        self._wait(self._is_up)

    def end(self) -> None:
        """Kill every node, with the jobs on it."""
        for name in reversed(list(self._processes)):
            self._kill(name)

    # Nodes.

    def boot(self, node: str) -> None:
        """Start a compute node that is new or was lost."""
        network = ("nsenter", "--net", f"--target={self._processes['login'].pid}")
        machine = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--uts")
        self._run(node, *network, *machine, "bash", "-c", COMPUTE_NODE, node)

    def lose(self, node: str) -> None:
        """End every process of the node at once, as a power cut does, and mark the node as down in Slurm."""
        self.power_off(node)
        self.set_down(node)
        # An answer that the node gave before may return it to service. A drained node gets no job even then.
        self.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=lost")

    def power_off(self, node: str) -> None:
        """End every process of the node at once. Slurm takes minutes to notice."""
        self._kill(node)

    def set_down(self, node: str) -> None:
        """Mark the node as down in Slurm, as an operator does, even if programs run there."""
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """Let no controller answer meanwhile."""
        self._kill("slurmctld")
        try:
            yield
        finally:
            self._start_controller()

    def repair(self) -> None:
        """Boot the lost nodes, and end all jobs. Return when every node is idle."""
        self.call("scancel", "--user=root")
        for node in self.nodes:
            if node not in self._processes:
                self.boot(node)
            if re.search("down|drain", self.call("sinfo", "--noheader", f"--nodes={node}", "--format=%T")):
                with suppress(subprocess.CalledProcessError):  # it has just returned by itself
                    self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self._wait(self._is_up)

    def processes(self, pattern: str) -> dict[int, str]:
        """Return the matching command lines on the compute nodes, by this machine's process ids."""
        roots = {os.stat(f"/proc/{child}/ns/pid").st_ino for child in self._first_processes()}
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.stat(entry / "ns/pid").st_ino in roots:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # it is gone, or belongs to the machine
                continue
        return {pid: line for pid, line in found.items() if re.search(pattern, line)}

    def kill(self, pattern: str) -> None:
        """Kill the only process on the compute nodes with a matching command line."""
        (pid,) = self.processes(pattern)
        os.kill(pid, signal.SIGKILL)

    # Commands and jobs.

    def on_login(self, *command: str) -> tuple[str, ...]:
        """Return the command that executes `command` on the login node, in the same folder. It needs `env`."""
        holder = f"--target={self._processes['login'].pid}"
        return ("nsenter", holder, "--net", "--uts", "--mount", "--wd=.", *command)

    def call(self, *command: str, env: Mapping[str, str] | None = None, within_s: float = PATIENCE_S) -> str:
        """Return the output of a command on the login node. Raises `CalledProcessError`, and shows the error output."""
        where = {"cwd": self.folder, "env": {**self.env, **(env or {})}, "stdin": subprocess.DEVNULL}
        command = self.on_login(*command)
        return subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=within_s,
            **where,
        ).stdout.strip()

    def submit(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Return the id of a job submitted with these arguments of `sbatch`, with `env` added to the environment, in
        `folder`.
        """
        return self.call("sbatch", "--parsable", *words, env=env)

    def job(self, job: str) -> dict[str, str]:
        """Return the facts of a job by Slurm's names, such as JobState, ExitCode, Restarts, NodeList, StdOut."""
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", self.call("scontrol", "show", "job", job)))

    def output(self, job: str) -> str:
        """Return what the job has written so far."""
        if job not in self._outputs:
            self._outputs[job] = Path(self.job(job)["StdOut"])
        return self._outputs[job].read_text() if self._outputs[job].exists() else ""

    async def reaches(self, job: str, *states: str, restarts: int = 0) -> str:
        """Return the job's state once it is one of these, after this number of requeues. Show the job's output."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, 0.1
        while (facts := self.job(job))["JobState"] not in states or int(facts["Restarts"]) < restarts:
            if time.monotonic() > deadline or facts["JobState"] in set(ENDS) - set(states):
                break
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.1)  # each look is a program, and a job may take a minute
        print(f"job {job}: {facts['JobState']} {facts['ExitCode']}\n{self.output(job)}", file=sys.stderr)
        assert facts["JobState"] in states, facts
        return facts["JobState"]

    async def ended(self, job: str) -> str:
        """Return the state in which the job has ended."""
        return await self.reaches(job, *ENDS)

    def limit(self, job: str, minutes: int) -> None:
        """Change the time limit of a running job. Slurm checks it twice a minute."""
        self.call("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")

    # Inside.

    def _write_files(self) -> None:
        hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self._addresses.items())]
        (self.folder / "hosts").write_text("\n".join(hosts) + "\n")
        first, last = FIRST_PORT, FIRST_PORT + len(self.nodes) - 1
        nodes = f"n[1-{len(self.nodes)}]"
        text = CONFIGURATION.format(folder=self.folder, login=LOGIN, nodes=nodes, first=first, last=last)
        (self.folder / "slurm.conf").write_text(text)
        # Switch s1 has the nodes with odd numbers, s2 the others: topology's order is not the nodes' order.
        switches = {f"s{part + 1}": self.nodes[part::2] for part in (0, 1) if self.nodes[part::2]}
        lines = [f"SwitchName={switch} Nodes={','.join(names)}" for switch, names in switches.items()]
        (self.folder / "topology.conf").write_text(
            "\n".join([*lines, f"SwitchName=s0 Switches={','.join(switches)}\n"])
        )
        (self.folder / "slurmctld").mkdir()
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir()
        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(128))

    def _start_controller(self) -> None:
        self._run("slurmctld", *self.on_login("slurmctld", "-D", "-i"))

    def _run(self, name: str, *command: str) -> None:
        """Start a process that dies with the test run."""
        with open(self.folder / f"{name}.out", "ab") as out:
            self._processes[name] = subprocess.Popen(
                ("setpriv", "--pdeathsig", "KILL", *command),
                cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _first_processes(self) -> list[str]:
        """Return the pids of the nodes' first processes."""
        pids = [self._processes[node].pid for node in self.nodes if node in self._processes]
        return [child for pid in pids for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _is_up(self) -> bool:
        try:
            return self.call("sinfo", "--noheader", "--format=%T").split() == ["idle"]
        except subprocess.CalledProcessError:  # slurmctld does not listen yet
            return False

    def _wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))
                raise TimeoutError(f"Slurm does not come up:\n{logs}")
            time.sleep(0.05)


@contextmanager
def slurm_cluster(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Yield a Slurm with idle nodes."""
    for program in PROGRAMS:
        if not shutil.which(program):
            pytest.skip(f"{program} is not on PATH: tests/install-debian-packages.sh installs it")
    works = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "ip", "link", "set", "lo", "up")
    probe = subprocess.run(works, capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no namespaces here: {probe.stderr.strip()}")
    slurm = Slurm(folder, nodes)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.end()
