"""The examples of `examples/gallery/`, run by the commands of docs/how-to/frameworks.md: killed, they print the same.

The last output for a step counts: steps that were trained but not saved in a checkpoint are trained again. Losses are
compared exactly if the world has the same size. Otherwise sums have another order, and differ in the last digits of the
type in which they are computed. A killed agent is started again, as a scheduler does.

Workers are forks of one process that has imported the framework, under either launcher: otherwise each test would
import it a dozen times. `--preload` also forks workers from one such process for each framework.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from node_agent.features.warm.words import start_warm
from tests.support.cluster import PATIENT
from tests.support.launchers import FSDP_MODULES, PROGRAMS, free_port, warm_python
from tests.support.lazy_modules import need
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.support.programs import Program, Server, start_agent

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600), pytest.mark.usefixtures("programs")]

PATIENCE_S = 280.0
"""Seconds for several parallel imports of large frameworks, on a small, busy machine."""

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "gallery"
PAGE = (ROOT / "docs" / "how-to" / "frameworks.md").read_text()
INTERRUPTED = PROGRAMS / "interrupted.py"
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
LONG_TIMERS = {
    f"PET_{flag[2:].upper().replace('-', '_')}": value for flag, value in zip(PATIENT[::2], PATIENT[1::2], strict=True)
}
PRINTED = re.compile(r"(?:epoch=\d+ )?(?P<name>epoch|step)=(?P<number>\d+) rank=0\b.* loss=(?P<loss>\S+)(?P<rest>.*)")
TRANSFORMERS = "transformers.trainer,transformers.models.gpt2.modeling_gpt2,deepspeed"

Interruption = tuple[str, int, str]
Story = dict[int, tuple[float, str]]
"""Loss, and other output, of each step or epoch."""


# The page.

COMMANDS = ("node-agent --endpoint", "accelerate launch", "fabric run", "torchft_lighthouse", "node-agent --standalone")
"""Words that identify a command of the page."""


def commands() -> list[str]:
    """Return the command lines of the page, without prompt, line breaks and comments."""
    blocks = "\n".join(re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)).replace("\\\n", " ")
    return re.findall(r"^\$ (.*?)(?: +# .*)?$", blocks, re.M)


async def carry_out(words: str, name: str, folder: Path, env: Mapping[str, str], **yours: str) -> Program:
    """Start the page's command with these words, on an example. `yours`: values for its words in capital letters
    (`HOST_29400` for HOST:29400) and for its flags (`nproc`).
    """
    (line,) = (line for line in commands() if words in line)
    line = line.replace("train.py", f"{INTERRUPTED} {GALLERY / name}.py")
    for theirs, ours in yours.items():
        capital = theirs.replace("_", ":")
        line = re.sub(rf"\b{capital}\b", ours, line) if theirs.isupper() else re.sub(
            rf"(?<=--{theirs}[ =])\S+", ours, line
        )  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return await Program.start("bash", "-c", f"exec env {line}", env={**QUIET, "PATH": path, **env}, cwd=folder)


def test_every_command_of_the_page_is_carried_out_here() -> None:
    assert [[words in line for words in COMMANDS].count(True) for line in commands()] == [1] * len(COMMANDS)


def test_the_pages_lines_for_lightning_give_it_the_size_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    found = {"os": os, "lightning": SimpleNamespace(Trainer=dict)}
    exec(block, found)
    assert found["trainer"] == {"devices": 4, "num_nodes": 2}


# The examples.


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program, its requirements, and what happens to it (see tests/programs/interrupted.py).

    Its two workers are on as many nodes as `nodes` has letters.
    """

    needs: str = "torch"
    preload: str
    """Modules that its workers have already imported. Tests that name the same ones share that process."""
    interruptions: tuple[Interruption, ...]
    nodes: str = "a"
    environment: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4",
         "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}  # fmt: skip
"""Environment of a Slurm job's task. None of it is true of these workers."""
EPOCHS = (("epoch=2 ", 1, "kill worker"), ("epoch=3 ", 0, "kill agent"))
STEPS = (("step=5 ", 1, "kill worker"), ("step=7 ", 0, "kill agent"))

EXAMPLES = {
    "accelerate_loop": Example(
        needs="accelerate", preload="accelerate,torch._dynamo", interruptions=EPOCHS, nodes="ab"
    ),
    "hf_trainer": Example(
        needs="transformers",
        preload=TRANSFORMERS,
        interruptions=(("step=5 ", 0, "kill worker"), ("step=7 ", 0, "kill agent")),
    ),
    "lightning_trainer": Example(
        needs="lightning",
        preload="lightning",
        interruptions=EPOCHS,
        environment=SLURM,
        says="started by TorchElasticEnvironment",
    ),
    "async_checkpoint": Example(preload=FSDP_MODULES, interruptions=STEPS),
    "deepspeed_zero": Example(
        needs="deepspeed", preload="deepspeed.runtime.zero.muon.muon_optimizer", interruptions=STEPS
    ),
}
_undisturbed: dict[str, Story] = {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(each.preload)) for name, each in EXAMPLES.items()]
)
async def test_a_killed_worker_and_a_killed_agent_change_nothing(name: str, tmp_path: Path) -> None:
    example, folder = EXAMPLES[name], tmp_path / "disturbed"
    need(example.needs)
    python = warm_python(example.preload, tmp_path, QUIET)
    expected, restarts = await asyncio.gather(
        undisturbed(name, tmp_path, {**example.environment, **python, "PET_PRELOAD": example.preload}),
        disturbed(name, folder, python),
    )
    assert story(folder) == expected
    assert sum(int(line["number"]) == min(expected) for line in lines(folder)) == 1, "it began only once"
    assert restarts == {"worker_failure": 1, "node_lost": 1}
    assert example.says in (folder / "printed-0").read_text()


async def undisturbed(name: str, folder: Path, env: Mapping[str, str]) -> Story:
    """Return the example's story on one node with two workers, without the page. It is made once for all tests."""
    if name not in _undisturbed:
        os.mkdir(alone := folder / "undisturbed")
        flags = ("--standalone", "--nproc", "2", str(INTERRUPTED))
        agent = await start_agent(*flags, env={**QUIET, **env}, cwd=alone, script=GALLERY / f"{name}.py")
        assert await agent.exit_code(PATIENCE_S) == 0, agent.err
        assert any(has_message(line, start_warm) for line in agent.err) is ("PET_PRELOAD" in env)
        _undisturbed[name] = story(alone)
    return _undisturbed[name]


async def disturbed(name: str, folder: Path, python: Mapping[str, str]) -> dict[str, int]:
    """Run the page's first command on each node, again when its agent was killed. Return the run's restarts."""
    example = EXAMPLES[name]
    server = await Server.listen("--store", "memory")
    os.mkdir(folder)
    env = {**LONG_TIMERS, **example.environment, **python, "PET_RDZV_ID": "nightly"}
    env["INTERRUPTIONS"] = json.dumps(example.interruptions)
    nproc = str(2 // len(example.nodes))

    async def node(node_id: str) -> int:
        while True:
            place = {"HOST_29400": server.endpoint, "nnodes": str(len(example.nodes)), "nproc": nproc}
            agent = await carry_out("node-agent --endpoint", name, folder, env | {"PET_NODE_ID": node_id}, **place)
            if (code := await agent.exit_code(PATIENCE_S)) != -9:
                return code

    assert set(await asyncio.gather(*map(node, example.nodes))) == {0}
    return await restarts_of(server)


async def restarts_of(server: Server) -> dict[str, int]:
    """Return the restarts of the server's only run, by cause."""
    return {cause: times for cause, times in (await server.run())["restarts"].items() if times}


ELASTIC = {
    "fsdp2_checkpoint": ("torch", FSDP_MODULES),
    "accelerate_elastic": ("accelerate", "accelerate,torch._dynamo"),
    "hf_trainer_elastic": ("transformers", TRANSFORMERS),
    "lightning_elastic": ("lightning", "lightning"),
}
"""Requirement and preloaded modules of each. `node_agent.data` deals the samples in all but the first."""


@pytest.mark.parametrize(
    ("name", "needs", "preload"),
    [pytest.param(name, *each, marks=pytest.mark.xdist_group(each[1])) for name, each in ELASTIC.items()],
)
async def test_a_node_leaves_and_another_joins(name: str, needs: str, preload: str, tmp_path: Path) -> None:
    """One of two nodes is killed with its agent. The other continues by itself until a third one joins."""
    need(needs)
    python = warm_python(preload, tmp_path, QUIET)
    expected, changed = await asyncio.gather(
        undisturbed(name, tmp_path, python), elastic(name, tmp_path / "changed", python)
    )
    found = story(tmp_path / "changed")
    assert found.keys() == expected.keys()
    assert [rest for _, rest in found.values()] == [rest for _, rest in expected.values()]
    for step, (loss, _) in expected.items():
        assert found[step][0] == pytest.approx(loss, rel=1e-4)
    if name.endswith("_elastic"):
        every_sample_once_an_epoch([rest for _, (_, rest) in sorted(found.items())])
    worlds = [int(line[1]) for line in (re.search(r"rank=0 of (\d)", text) for text in changed.out) if line]
    assert [size for size, before in zip(worlds, [0, *worlds], strict=False) if size != before] == [2, 1, 2]


def every_sample_once_an_epoch(steps: list[str]) -> None:
    """Check the samples that a program with four steps an epoch has printed."""
    batches = [json.loads(step.partition("samples=")[2]) for step in steps]
    epochs = [sorted(chain(*batches[first : first + 4])) for first in range(0, len(batches) - 3, 4)]
    assert len(epochs) >= 2 and epochs == [list(range(len(epochs[0])))] * len(epochs)


async def elastic(name: str, folder: Path, python: Mapping[str, str]) -> Program:
    """Return the agent that stays."""
    server = await Server.listen("--store", "memory")
    script = [INTERRUPTED, GALLERY / f"{name}.py"]
    os.mkdir(folder)
    happens = [("step=3 ", 1, "kill agent"), ("step=6 rank=0 of 1", 0, "wait")]
    env = {**QUIET, **python, "INTERRUPTIONS": json.dumps(happens)}

    async def join(node_id: str) -> Program:
        flags = ("--endpoint", server.endpoint, "--node-id", node_id, "--nnodes", "1:2", *PATIENT)
        return await start_agent(*flags, str(script[0]), env=env, cwd=folder, script=script[1])

    stays = await join("a")
    await stays.line("waiting for|last call|joined")
    goes = await join("b")
    await stays.line("interrupted: wait", PATIENCE_S)
    assert await goes.exit_code(PATIENCE_S) == -9
    comes = await join("c")
    assert [await agent.exit_code(PATIENCE_S) for agent in (stays, comes)] == [0, 0]
    assert await restarts_of(server) == {"node_lost": 1, "node_arrived": 1}
    return stays


async def test_torchft_replicas_continue_while_one_is_started_again(tmp_path: Path) -> None:
    """Each replica is a run. One loses its worker, and later all of it. No other replica restarts, and both end with
    the same weights.
    """
    need("torchft")
    python = warm_python("torchft,torch._dynamo", tmp_path, QUIET)
    lighthouses = await asyncio.gather(Lighthouse.start(tmp_path), Lighthouse.start(tmp_path))
    solo, replicas = await asyncio.gather(
        replica(lighthouses[0], tmp_path / "solo", python), two_replicas(lighthouses[1], tmp_path, python)
    )
    assert await solo.exit_code(PATIENCE_S) == 0
    assert [await agent.exit_code(PATIENCE_S) for agent in replicas] == [0, 0]
    ends = [float(agent.out[-1].removeprefix("weights=")) for agent in (solo, *replicas)]
    assert ends[1] == ends[2] == pytest.approx(ends[0], rel=1e-9)
    (survivor,), (first, *again) = lives(tmp_path / "first"), lives(tmp_path / "second")
    assert sorted(set(survivor)) == list(range(1, 81)), "it did every step"
    assert survivor[0] == 1 and len(survivor) <= 82, "one of them again, at most, when the other one went"
    assert len(again) == 2
    for before, life in zip((first, again[0]), again, strict=True):
        assert min(life) > max(before), "it came back where the survivor was, not at the beginning"
    assert sum("replicas=2" in line for line in replicas[0].out[-20:]) > 10
    assert not any("restart" in line and "charged" in line for line in replicas[0].err)


def lives(folder: Path) -> list[list[int]]:
    """Return the steps that each of a replica's workers took."""
    told = (folder / "printed-0").read_text().split("this replica begins\n")[1:]
    return [[int(step) for step in re.findall(r"^step=(\d+) replicas=", life, re.M)] for life in told]


class Lighthouse:
    """A torchft lighthouse, which makes one replica wait for another if it is alive."""

    def __init__(self, program: Program, address: str) -> None:
        self._program, self.address = program, address
        self._replicas = set[str]()
        self._read = 0
        """Number of its lines that have been read."""

    @classmethod
    async def start(cls, folder: Path) -> "Lighthouse":
        with free_port() as port:  # until it listens
            address = f"127.0.0.1:{port}"
            program = await carry_out("torchft_lighthouse", "", folder, {"RUST_LOG": "info"}, bind=address)
            await program.line("Lighthouse listening", PATIENCE_S)
            return cls(program, address)

    async def has_heard_of(self, replicas: int) -> None:
        """Return when this number of replicas has asked who is there. A restarted replica counts as another one."""

        def heard_of() -> set[str]:
            told = self._program.err[self._read :]
            self._read += len(told)
            self._replicas.update(re.findall(r"Received quorum request for replica (\S+)", "\n".join(told)))
            return self._replicas

        await until(lambda: len(heard_of()) == replicas, PATIENCE_S)


async def two_replicas(lighthouse: Lighthouse, folder: Path, python: Mapping[str, str]) -> tuple[Program, Program]:
    """Yield two replicas. The second one's worker dies as soon as both train together, and later its agent. Each time
    it is back before the first replica continues.
    """
    first, second = folder / "first", folder / "second"
    survivor = await replica(lighthouse, first, python, *((f"step={step} ", 0, "wait") for step in (3, 30, 50)))
    await until(lambda: "interrupted: wait" in survivor.out, PATIENCE_S)
    actions = (("replicas=2", 0, "kill worker"), ("step=40 ", 0, "kill agent"))
    killed = await replica(lighthouse, second, python, *actions)
    for replicas, go in ((2, "go-0"), (3, "go-1")):
        await lighthouse.has_heard_of(replicas)
        (first / go).touch()
    assert await killed.exit_code(PATIENCE_S) == -9
    killed = await replica(lighthouse, second, python, *actions)
    await lighthouse.has_heard_of(4)
    (first / "go-2").touch()
    return survivor, killed


async def replica(
    lighthouse: Lighthouse, folder: Path, how: Mapping[str, str], *interruptions: Interruption
) -> Program:
    os.makedirs(folder, exist_ok=True)
    env = {"RUST_LOG": "warn", **how, "INTERRUPTIONS": json.dumps(interruptions)}
    place = {"HOST_29510": lighthouse.address, "nproc": "1"}
    return await carry_out("node-agent --standalone", "torchft_replicas", folder, env, **place)


# Frameworks' own launchers, which run torch's launcher in their process.


@dataclass(frozen=True, kw_only=True)
class OwnLauncher:
    """A command of the page, and the number of machines on which it runs."""

    needs: str
    script: str
    preload: str
    machines: int
    interruption: Interruption
    yours: Mapping[str, str]


OWN_LAUNCHERS = {
    "accelerate launch": OwnLauncher(
        needs="accelerate",
        script="accelerate_loop",
        preload="accelerate,torch._dynamo",
        machines=2,
        interruption=("epoch=2 ", 1, "kill worker"),
        yours={"num_processes": "2"},
    ),
    "fabric run": OwnLauncher(
        needs="lightning",
        script="fabric_loop",
        preload="lightning",
        machines=1,
        interruption=("step=3 ", 1, "kill worker"),
        yours={"devices": "2"},
    ),
}


@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=pytest.mark.xdist_group(each.preload)) for words, each in OWN_LAUNCHERS.items()]
)
async def test_a_frameworks_own_launcher_runs_on_our_server(words: str, tmp_path: Path) -> None:
    """The launcher finds our rendezvous by its entry point, and a killed worker changes nothing there either.

    The server runs on machine 0, at the endpoint, where `accelerate launch` would otherwise look for a free port.
    """
    launcher = OWN_LAUNCHERS[words]
    need(launcher.needs)
    server = await Server.listen("--store", "memory")
    os.mkdir(folder := tmp_path / "disturbed")
    env = {"PET_MAX_RESTARTS": "3", "INTERRUPTIONS": json.dumps([launcher.interruption])}
    env |= (python := warm_python(launcher.preload, tmp_path, QUIET))
    machines = []
    for machine in map(str, range(launcher.machines)):
        place = {"HOST_29400": server.endpoint, "R": machine, **launcher.yours}
        env["PET_RDZV_CONF"] = f"node_id=m{machine}"  # they are one machine here
        machines.append(await carry_out(words, launcher.script, folder, env, **place))
    expected = await undisturbed(launcher.script, tmp_path, python)
    assert [await machine.exit_code(PATIENCE_S) for machine in machines] == [0] * launcher.machines
    assert story(folder) == expected
    run = await server.run()
    assert (run["phase"], len(run["nodes"]), run["restarts"]["worker_failure"]) == ("succeeded", launcher.machines, 1)


def story(folder: Path) -> Story:
    """Return what a run in this folder printed last for each step or epoch."""
    return {int(line["number"]): (float(line["loss"]), line["rest"]) for line in lines(folder)}


def lines(folder: Path) -> list[re.Match[str]]:
    return [match for match in map(PRINTED.fullmatch, (folder / "printed-0").read_text().splitlines()) if match]
