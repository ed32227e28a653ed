"""The examples of `examples/gallery/`: killed on their way, they print what they print undisturbed.

What counts is what was printed last for a step: what was trained, but not kept in a checkpoint, is trained again.
Losses are compared exactly where the world has the same size. Elsewhere sums have another order, and differ in the last
digits of the type that they are computed in.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.cluster import PATIENT
from tests.support.launchers import PROGRAMS, free_port
from tests.support.process_info import until
from tests.support.programs import Program, Server, start_agent

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

PATIENCE_S = 280.0
"""Several imports of large frameworks, side by side, on a small machine that has other work."""

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
INTERRUPTED = PROGRAMS / "interrupted.py"
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
PRINTED = re.compile(r"(?:epoch=\d+ )?(?P<name>epoch|step)=(?P<number>\d+) rank=0\b.* loss=(?P<loss>\S+)(?P<rest>.*)")
TORCH_MODULES = "torch.distributed.fsdp,torch.distributed.checkpoint,torch.distributed.nn,torch._dynamo"

Interruption = tuple[str, int, str]
Story = dict[int, tuple[float, str]]
"""Loss, and what else was said, of each step or epoch."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program, what it needs, and what happens to it (see tests/programs/interrupted.py)."""

    needs: str = "torch"
    preload: str
    interruptions: tuple[Interruption, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4",
         "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}  # fmt: skip
"""What a task of a Slurm job finds, none of which is so for these workers."""

EXAMPLES = {
    "accelerate_loop": Example(
        needs="accelerate", preload="accelerate", interruptions=(("epoch=2 ", 1, "kill worker"),)
    ),
    "hf_trainer": Example(needs="transformers", preload="transformers", interruptions=(("step=5 ", 0, "kill worker"),)),
    "lightning_trainer": Example(
        needs="lightning",
        preload="lightning",
        interruptions=(("epoch=2 ", 1, "kill worker"),),
        environment=SLURM,
        says="started by TorchElasticEnvironment",
    ),
    "async_checkpoint": Example(
        preload=TORCH_MODULES, interruptions=(("step=5 ", 1, "kill worker"), ("step=9 ", 0, "kill worker"))
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_killed_worker_changes_nothing(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    pytest.importorskip(example.needs)
    undisturbed, killed = await asyncio.gather(
        run(name, tmp_path / "undisturbed", preload=example.preload, env=example.environment),
        run(name, tmp_path / "killed", *example.interruptions, preload=example.preload, env=example.environment),
    )
    assert story(killed) == story(undisturbed)
    assert sum("interrupted: " in line for line in killed.out) == len(example.interruptions)
    assert sum(int(line["number"]) == min(story(killed)) for line in lines(killed)) == 1, "it began only once"
    assert any(f"{len(example.interruptions)} of them charged" in line for line in killed.err)
    assert any(example.says in line for line in killed.out)


@pytest.mark.parametrize(
    ("name", "needs", "precision"), [("elastic_sampler", "torchdata", 1e-12), ("fsdp2_checkpoint", "torch", 1e-4)]
)
async def test_a_node_goes_and_another_comes(name: str, needs: str, precision: float, tmp_path: Path) -> None:
    """Two nodes, one of which is killed with its agent; the other goes on alone, until a third one comes."""
    pytest.importorskip(needs)
    modules = f"{TORCH_MODULES},torchdata.stateful_dataloader" if needs == "torchdata" else TORCH_MODULES
    undisturbed, changed = await asyncio.gather(
        run(name, tmp_path / "undisturbed", preload=modules), elastic(name, tmp_path / "changed", modules)
    )
    expected, found = story(undisturbed), story(changed)
    assert found.keys() == expected.keys()
    assert [rest for _, rest in found.values()] == [rest for _, rest in expected.values()]
    for step, (loss, _) in expected.items():
        assert found[step][0] == pytest.approx(loss, rel=precision)
    if name == "elastic_sampler":
        trained = [json.loads(rest.removeprefix(" samples=")) for _, (_, rest) in sorted(found.items())]
        for epoch in (trained[:12], trained[12:]):
            assert sorted(number for batch in epoch for number in batch) == list(range(48))
    worlds = [int(line[1]) for line in (re.search(r"rank=0 of (\d)", text) for text in changed.out) if line]
    assert [size for size, before in zip(worlds, [0, *worlds], strict=False) if size != before] == [2, 1, 2]


async def elastic(name: str, folder: Path, preload: str) -> Program:
    """The agent that stays."""
    server = await Server.listen("--store", "memory")
    script = [INTERRUPTED, GALLERY / f"{name}.py"]
    os.mkdir(folder)
    happens = [("step=3 ", 1, "kill agent"), ("step=6 rank=0 of 1", 0, "wait")]
    env = QUIET | {"INTERRUPTIONS": json.dumps(happens)}

    async def join(node_id: str) -> Program:
        flags = ("--endpoint", server.endpoint, "--node-id", node_id, "--nnodes", "1:2", *PATIENT, "--preload", preload)
        return await start_agent(*flags, str(script[0]), env=env, cwd=folder, script=script[1])

    stays = await join("a")
    await stays.line("waiting for|last call|joined")
    goes = await join("b")
    await stays.line("interrupted: wait", PATIENCE_S)
    assert await goes.exit_code(PATIENCE_S) == -9
    comes = await join("c")
    assert [await agent.exit_code(PATIENCE_S) for agent in (stays, comes)] == [0, 0]
    restarts = (await server.run())["restarts"]
    assert restarts == {"worker_failure": 0, "node_lost": 1, "node_left": 0, "node_arrived": 1}
    return stays


async def test_torchft_replicas_go_on_while_one_is_started_again(tmp_path: Path) -> None:
    """Each replica is a run; one loses its worker. Nobody else is restarted, and both end with the same weights."""
    pytest.importorskip("torchft")
    solo, replicas = await asyncio.gather(
        replica(await lighthouse(), tmp_path / "solo"), two_replicas(await lighthouse(), tmp_path)
    )
    assert await solo.exit_code(PATIENCE_S) == 0
    assert [await agent.exit_code(PATIENCE_S) for agent in replicas] == [0, 0]
    ends = [float(agent.out[-1].removeprefix("weights=")) for agent in (solo, *replicas)]
    assert ends[1] == ends[2] == pytest.approx(ends[0], rel=1e-9)
    survivor, killed = (
        [int(line[1]) for line in (re.match(r"step=(\d+) replicas=", text) for text in agent.out) if line]
        for agent in replicas
    )
    assert sorted(set(survivor)) == list(range(1, 81)), "it did every step"
    assert survivor[0] == 1 and len(survivor) <= 81, "one of them again, at most, when the other one went"
    came_back = replicas[1].out.index("this replica begins", 1)
    before = sum(line.startswith("step=") for line in replicas[1].out[:came_back])
    assert min(killed[before:]) > max(killed[:before]), "it came back where the survivor was, not at the beginning"
    assert sum("replicas=2" in line for line in replicas[0].out[-20:]) > 10
    assert not any("restart" in line and "charged" in line for line in replicas[0].err)


async def lighthouse() -> str:
    """Address of a torchft lighthouse that has one replica wait for another if it is alive."""
    with free_port() as port:
        program = Path(sys.executable).with_name("torchft_lighthouse")
        flags = ("--bind", f"127.0.0.1:{port}", "--min_replicas", "1", "--join_timeout_ms", "60000")
        await Program.start(str(program), *flags)
    return f"http://127.0.0.1:{port}"


async def two_replicas(address: str, folder: Path) -> tuple[Program, Program]:
    """The second one dies as soon as both train together, and is back before the first one goes on from step 40."""
    first, second = folder / "first", folder / "second"
    waits = (("step=3 ", 0, "wait"), ("step=40 ", 0, "wait"))
    survivor = await replica(address, first, *waits)
    await until(lambda: "interrupted: wait" in survivor.out, PATIENCE_S)
    killed = await replica(address, second, ("replicas=2", 0, "kill worker"))
    for times, go in enumerate(("go-0", "go-1"), 1):
        await until(lambda times=times: killed.out.count("this replica begins") == times, PATIENCE_S)  # type: ignore[misc]
        (first / go).touch()
    return survivor, killed


async def replica(address: str, folder: Path, *interruptions: Interruption) -> Program:
    places = {"TORCHFT_LIGHTHOUSE": address, "RUST_LOG": "warn"}
    os.mkdir(folder)
    flags = ("--standalone", "--max-restarts", "3", "--preload", "torchft", str(INTERRUPTED))
    environment = QUIET | places | {"INTERRUPTIONS": json.dumps(interruptions)}
    return await start_agent(*flags, env=environment, cwd=folder, script=GALLERY / "torchft_replicas.py")


OWN_LAUNCHERS = {
    "accelerate launch": (
        "01",
        "accelerate",
        "accelerate_loop.py",
        "launch --multi_gpu --same_network --rdzv_backend rdzv-server --rdzv_conf node_id=m{machine} --num_machines 2 "
        "--num_processes 2 --machine_rank {machine} --mixed_precision no --dynamo_backend no",
    ),
    "fabric run": (
        "0",
        "lightning",
        "fabric_loop.py",
        "run --accelerator=cpu --devices=1",
    ),
}


@pytest.mark.parametrize("launcher", OWN_LAUNCHERS)
async def test_a_launcher_of_the_frameworks_own_on_our_server(launcher: str, tmp_path: Path) -> None:
    """It has torch's launcher in its own process, which finds our rendezvous by its entry point (docs/frameworks.md).

    The server runs on machine 0, at the endpoint, where `accelerate launch` would rather find a free port.
    """
    names, needs, script, flags = OWN_LAUNCHERS[launcher]
    pytest.importorskip(needs)
    server = await Server.listen("--store", "memory")
    command = str(Path(sys.executable).with_name(launcher.split()[0]))
    machines = []
    for machine in names:
        place = {"PET_RDZV_ENDPOINT": server.endpoint, "PET_RDZV_BACKEND": "rdzv-server", "PET_RDZV_ID": "nightly"}
        env = QUIET | place | {"PET_RDZV_CONF": f"node_id=m{machine}"}
        words = flags.format(machine=machine).split()
        machines.append(await Program.start(command, *words, str(GALLERY / script), env=env, cwd=tmp_path))
    assert [await machine.exit_code(PATIENCE_S) for machine in machines] == [0] * len(names)
    run = await server.run()
    assert (run["run_id"], run["phase"], len(run["nodes"])) == ("nightly", "succeeded", len(names))
    assert any(f" of {len(names)} loss=" in line for line in machines[0].out)


async def run(
    name: str, folder: Path, *interruptions: Interruption, preload: str, env: Mapping[str, str] | None = None
) -> Program:
    """The example on one node with two workers, to its end."""
    os.mkdir(folder)
    flags = ("--standalone", "--nproc", "2", "--max-restarts", "3", "--preload", preload)
    environment = {**QUIET, **(env or {}), "INTERRUPTIONS": json.dumps(interruptions)}
    agent = await start_agent(*flags, str(INTERRUPTED), env=environment, cwd=folder, script=GALLERY / f"{name}.py")
    assert await agent.exit_code(PATIENCE_S) == 0, agent.err
    return agent


def story(agent: Program) -> Story:
    """What was printed last for each step or epoch."""
    return {int(line["number"]): (float(line["loss"]), line["rest"]) for line in lines(agent)}


def lines(agent: Program) -> list[re.Match[str]]:
    return [match for match in map(PRINTED.fullmatch, agent.out) if match]
