"""TorchX components `rdzv.ddp` and `rdzv.spmd`: TorchX's `dist.ddp` and `dist.spmd` on `rdzv-server` and `node-agent`.

TorchX finds them through the entry point `torchx.components`; no other module imports them. All arguments of TorchX
0.7's components keep their meaning. `--server` is ours, and says where the nodes meet. See docs/how-to/torchx.md.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Dict, List, Optional  # TorchX reads these annotations as text, and does not support others

import torchx
from torchx import specs
from torchx.components import dist, structured_arg
from torchx.schedulers.slurm_scheduler import SlurmBatchRequest, SlurmReplicaRequest
from torchx.specs import macros

from node_agent import words

SERVER_ROLE = "rdzvserver"
"""Name of the first role. It becomes part of a variable's name on Kubernetes, so it has only letters."""
SERVER_RESOURCE = {"cpu": 1, "gpu": 0, "memMB": 1024}
FIRST_AGENT_S = 1800
"""Seconds that a separate server waits for agents, whose images may have to be pulled."""
BACKENDS = ("c10d", "static")
DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
"""Variables of `--debug`, as in TorchX."""
SUCCEEDED = f"slurm-{macros.app_id}.succeeded"
"""File in a Slurm job's folder, beside the replicas' output. It exists if an agent of the run has exited 0."""

FIRST_NODE, OWN_FIRST_NODE = "SLURM_JOB_NODELIST_HET_GROUP_0", "TORCHX_RANK0_HOST"
"""Variables of the first node: Slurm's own in heterogeneous jobs, and ours in others, where Slurm's misleads srun."""


def ddp(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    mounts: Optional[List[str]] = None,
    debug: bool = False,
    tee: int = 3,
    server: str = "replica",
) -> specs.AppDef:
    """
    Elastic distributed training with node-agent, instead of dist.ddp, which uses torchrun.

    Args:
        script_args: arguments of the script or module
        script: script to run within the image
        m: Python module to run, instead of a script
        image: image, such as a container's
        name: {experiment}/{run}, {experiment}/, /{run} or {run}; the run's default is the name of the script or module
        h: a registered named resource; takes precedence over cpu, gpu and memMB
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica, in MB
        j: [[{min_nnodes}:]{nnodes}x]{nproc_per_node}
        env: environment variables of the run, such as A=1,B=2; PET_MAX_RESTARTS=3 allows restarts after failures
        max_retries: retries by the scheduler
        rdzv_port: port of the server, unless --server names another
        rdzv_backend: with --server replica: c10d, or static, which takes replica ids for node ranks
        mounts: mounts, such as type=bind,src=/host,dst=/job,readonly
        debug: set the variables that make torch log more
        tee: streams that go to the console and to a file: 0 none, 1 stdout, 2 stderr, 3 both
        server: where rdzv-server is: replica (replica 0 hosts it), role (a separate role, which outlives lost
            replicas), or HOST:PORT, where it already runs
    """
    if (script is None) == (m is None):
        raise ValueError(words.torchx.SCRIPT_AND_MODULE)
    if rdzv_backend not in BACKENDS:
        raise ValueError(words.torchx.not_a_backend(BACKENDS, rdzv_backend))
    if server not in ("replica", "role") and ":" not in server:
        raise ValueError(words.torchx.not_a_server(server))
    least, most, nproc, _ = dist.parse_nnodes(j)
    names = structured_arg.StructuredNameArgument.parse_from(name=name, m=m, script=script)
    role_name = re.sub(r"[^A-Za-z0-9_.]", "_", Path(script).stem if script else str(m).rpartition(".")[2])
    variables = {
        "LOGLEVEL": os.getenv("LOGLEVEL", "WARNING"),
        **(env or {}),
        "TORCHX_TRACKING_EXPERIMENT_NAME": names.experiment_name,
        **(DEBUG if debug else {}),
    }
    command = [
        "exec node-agent --exit-with-run",
        _meet(server, rdzv_backend, rdzv_port, most),
        f"--rdzv-id {macros.app_id}",
        f"--nnodes {max(least, 1)}:{most}",
        f"--nproc-per-node {nproc}",
        f'--node-id "{role_name}-{macros.replica_id}"',  # AWS Batch replaces the macro by a variable
        f"--tee {tee} --role ''",
        *map(quote, [script] if script else ["-m", str(m)]),
        *map(quote, script_args),
    ]
    shared: Dict[str, Any] = {
        "image": image,
        "entrypoint": "bash",
        "env": variables,
        "max_retries": max_retries,
        "retry_policy": specs.RetryPolicy.REPLICA if least < most else specs.RetryPolicy.APPLICATION,
        "mounts": specs.parse_mounts(mounts) if mounts else [],
    }
    agents = _Agents(
        name=role_name,
        args=["-c", " ".join(command)],
        min_replicas=least,
        num_replicas=most,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        port_map={"c10d": rdzv_port},
        **shared,
    )
    roles: List[specs.Role] = [agents]
    if server == "role":
        token = '${PET_TOKEN_FILE:+--token-file "$PET_TOKEN_FILE"}'
        serve = f"exec rdzv-server --port {rdzv_port} --store memory --exit-when-idle {FIRST_AGENT_S} {token}"
        shared["env"] = dict(variables)
        resource = specs.resource(**SERVER_RESOURCE)
        port_map = {"rdzv": rdzv_port}
        roles = [
            specs.Role(
                name=SERVER_ROLE, args=["-c", serve], min_replicas=1, resource=resource, port_map=port_map, **shared
            ),
            agents,
        ]
    return specs.AppDef(name=names.run_name, roles=roles)


def spmd(
    *args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    mounts: Optional[List[str]] = None,
    debug: bool = False,
    rdzv_port: int = 29500,
    server: str = "replica",
) -> specs.AppDef:
    """
    Copies of one program on several nodes with node-agent, instead of dist.spmd, which uses torchrun.

    Args:
        args: arguments of the script or module
        script: script to run within the image
        m: Python module to run, instead of a script
        image: image, such as a container's
        name: {experiment}/{run}, {experiment}/, /{run} or {run}; the run's default is the name of the script or module
        h: type of the hosts, a registered named resource
        j: [{min_nnodes}:]{nnodes}[x{nproc_per_node}]; without nproc_per_node, one process for each GPU of the host
        env: environment variables of the run, such as A=1,B=2; PET_MAX_RESTARTS=3 allows restarts after failures
        max_retries: retries by the scheduler
        mounts: mounts, such as type=bind,src=/host,dst=/job,readonly
        debug: set the variables that make torch log more
        rdzv_port: port of the server, unless --server names another
        server: where rdzv-server is: replica (replica 0 hosts it), role (a separate role, which outlives lost
            replicas), or HOST:PORT, where it already runs
    """
    least, colon, most = j.rpartition(":")
    return ddp(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=f"{least}{colon}{structured_arg.StructuredJArgument.parse_from(h, most)}",
        env=env,
        max_retries=max_retries,
        rdzv_port=rdzv_port,
        mounts=mounts,
        debug=debug,
        server=server,
    )


def _meet(server: str, backend: str, port: int, most: int) -> str:
    """Return the flags that say where the server is, as words for a shell.

    `macros.rank0_env` is the name of a variable. AWS Batch does not set that variable on the node that it names.
    """
    first_replica = f'"$${{{macros.rank0_env}:-localhost}}:{port}"'
    if server == "role":
        return f"--endpoint {first_replica}"
    if server != "replica":
        return f"--endpoint {quote(server)}"
    if most == 1:
        return f"--rdzv-backend {backend} --rdzv-endpoint localhost:0"
    rank = f" --node-rank {macros.replica_id}" if backend == "static" else ""
    return f"--rdzv-backend {backend} --rdzv-endpoint {first_replica}{rank}"


@dataclass
class _Agents(specs.Role):  # type: ignore[misc]
    """Role whose replicas may be lost: an elastic run continues without them, and the job ends with the run."""

    def pre_proc(self, scheduler: str, dryrun_info: "specs.AppDryRunInfo[Any]") -> "specs.AppDryRunInfo[Any]":
        """Make the scheduler tolerate a lost replica of an elastic run, and give each replica its CPUs, where TorchX
        does not."""
        if scheduler == "slurm":
            _give_cpus(dryrun_info.request, self)
        if self.min_replicas != self.num_replicas:
            if scheduler == "slurm":
                dryrun_info.request = _elastic_slurm_job(dryrun_info.request, self)
            elif scheduler == "kubernetes":
                dryrun_info.request.resource["spec"]["minSuccess"] = 1  # an agent exits 0 when the run has succeeded
        return dryrun_info


def _replicas(job: SlurmBatchRequest, role: specs.Role) -> Dict[str, SlurmReplicaRequest]:
    return {name: replica for name, replica in job.replicas.items() if name.rpartition("-")[0] == role.name}


def _give_cpus(job: SlurmBatchRequest, role: specs.Role) -> None:
    """Give the number of CPUs to srun, too: since Slurm 22.05, srun does not take it from sbatch."""
    for replica in _replicas(job, role).values():
        if cpus := replica.sbatch_opts.get("cpus-per-task"):
            replica.srun_opts["cpus-per-task"] = cpus


def _elastic_slurm_job(job: SlurmBatchRequest, role: specs.Role) -> SlurmBatchRequest:
    """Return the job with one step for all replicas of the role. A server role runs beside the batch script.

    TorchX makes each replica a component of a heterogeneous job. Slurm ends such a job with the first lost node, even
    with `--no-kill`.
    """
    agents = _replicas(job, role)
    servers = [replica for name, replica in job.replicas.items() if name not in agents]
    commands = [
        replica.args[-1].removeprefix("exec ").replace(FIRST_NODE, OWN_FIRST_NODE) for replica in agents.values()
    ]
    cases = [f"{number}) {command} && : > {SUCCEEDED};;" for number, command in enumerate(commands)]
    name, step = next(iter(agents.items()))
    step.args[-1] = f"case $SLURM_PROCID in {' '.join(cases)} esac"
    step.sbatch_opts |= {"nodes": str(role.num_replicas), "no-kill": None}
    step.srun_opts |= {
        "ntasks": str(role.num_replicas),
        "output": step.srun_opts["output"].replace(f"-{name}.", f"-{role.name}-%t."),
        "error": step.srun_opts["error"].replace(f"-{name}.", f"-{role.name}-%t."),
        "no-kill": None,
        "kill-on-bad-exit": "0",
        "wait": "0",
    }
    return _ElasticSlurmJob(job.cmd, {name: step}, job.job_dir, job.max_retries, servers)


@dataclass(repr=False)
class _ElasticSlurmJob(SlurmBatchRequest):  # type: ignore[misc]
    """Job with exit code 0 if the run succeeded, even if single nodes failed."""

    servers: List[SlurmReplicaRequest]

    def materialize(self) -> str:
        verdict = _of_job(SUCCEEDED)
        before = [f"rm -f {verdict}", f'export {OWN_FIRST_NODE}="$SLURMD_NODENAME"', *map(_in_background, self.servers)]
        script = str(super().materialize())
        for line, instead in (
            ("set +e\n", "\n".join([*before, "set +e\n"])),
            ("exitcode=$?\n", f"exitcode=$?\nif [ -e {verdict} ]; then exitcode=0; fi\n"),
        ):
            if line not in script:
                raise RuntimeError(words.torchx.other_job_scripts(line))
            script = script.replace(line, instead, 1)
        return script


def _in_background(server: SlurmReplicaRequest) -> str:
    variables = [quote(f"{name}={value}") for name, value in server.env.items()]
    command = ["env", *variables, quote(server.entrypoint), *map(quote, server.args)]
    out, error = (_of_job(server.srun_opts[stream]) for stream in ("output", "error"))
    return f"{' '.join(command)} > {out} 2> {error} &"


def _of_job(path: str) -> str:
    """Return the path as a word for the batch script."""
    return '"' + path.replace(macros.app_id, "$SLURM_JOB_ID") + '"'
