"""TorchX components: their arguments, and the jobs that TorchX makes from them for schedulers that are not installed.

The files in `torchx_jobs/` are whole jobs, to be reviewed when they change. `python -m
tests.unit.node_agent.compat.test_torchx` writes them.
"""

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from node_agent import words

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchx_runner = pytest.importorskip("torchx.runner")
    import yaml
    from torchx import specs
    from torchx.components import dist
    from torchx.schedulers.ids import make_unique
    from torchx.specs.finder import get_components

    from node_agent.compat.torchx import ddp, spmd

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("torchx"),  # one process imports the clients of all schedulers
]
JOBS = Path(__file__).with_name("torchx_jobs")
TRAIN = ("--script", "train.py", "--image", "registry.example.org/train:1")
MACROS = ("--", "--out", "${img_root}/${app_id}/${replica_id}", "a b")
ELASTIC = ("-j", "1:2x8", "--server", "role", "--max_retries", "3", *TRAIN, *MACROS)
FIXED = ("-j", "2x8", "--max_retries", "3", *TRAIN)
MOUNT = ("--mounts", "type=bind,src=/data,dst=/data,readonly")
CASES = [
    ("kubernetes", {"queue": "default"}, "elastic", ELASTIC),
    ("kubernetes", {"queue": "default"}, "fixed", FIXED),
    ("aws_batch", {"queue": "default"}, "elastic", ELASTIC),
    ("local_docker", {}, "elastic", (*MOUNT, *ELASTIC)),
    ("slurm", {}, "elastic", ELASTIC),
    ("slurm", {}, "fixed", FIXED),
]


def job(scheduler: str, cfg: dict[str, str], arguments: Sequence[str]) -> str:
    """Return the job as TorchX would submit it. Generated names are always `train-id`."""
    with torchx_runner.get_runner() as runner:
        info = runner.dryrun_component("rdzv.ddp", list(arguments), scheduler, {**cfg})
    if scheduler == "slurm":
        return str(info.request.materialize())
    if scheduler == "kubernetes":
        return str(info)
    request = [vars(each) for each in info.request.containers] if scheduler == "local_docker" else vars(info.request)
    return yaml.safe_dump(json.loads(json.dumps(request)))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace values that depend on the machine or on chance by fixed ones."""
    settle(monkeypatch)


def settle(patch: pytest.MonkeyPatch) -> None:
    assert make_unique("train") != make_unique("train")
    for scheduler in ("kubernetes", "aws_batch", "docker"):
        patch.setattr(f"torchx.schedulers.{scheduler}_scheduler.make_unique", lambda name: f"{name}-id")
    patch.setattr("torchx.schedulers.slurm_scheduler.SlurmScheduler._partition_memmb", lambda *_: None)
    patch.setattr("getpass.getuser", lambda: "me")
    patch.delenv("LOGLEVEL", raising=False)


@pytest.mark.parametrize(("scheduler", "cfg", "name", "arguments"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES])
def test_the_job_is_the_reviewed_one(
    settled: None, scheduler: str, cfg: dict[str, str], name: str, arguments: Sequence[str]
) -> None:
    assert job(scheduler, cfg, arguments) == (JOBS / f"{scheduler}-{name}.txt").read_text()


def test_torchxs_own_components_stay_beside_ours() -> None:
    assert {"dist.ddp", "dist.spmd", "utils.echo", "rdzv.ddp", "rdzv.spmd"} <= get_components().keys()


@pytest.mark.parametrize(("theirs", "ours", "more"), [(dist.ddp, ddp, set()), (dist.spmd, spmd, {"rdzv_port"})])
def test_our_torchx_components_accept_every_argument_of_torchxs_own(theirs: Any, ours: Any, more: set[str]) -> None:
    """Parameters have the names, types and defaults of TorchX's own components."""
    expected, found = (signature(component).parameters for component in (theirs, ours))
    assert {name: str(found.get(name)) for name in expected} == {name: str(each) for name, each in expected.items()}
    assert found.keys() - expected.keys() == {"server", *more}


def command(app: specs.AppDef) -> str:
    """Return the agents' command line."""
    return str(app.roles[-1].args[-1])


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (ddp, {}, "--nnodes 1:1 --nproc-per-node 2"),
        (ddp, {"j": "4"}, "--nnodes 1:1 --nproc-per-node 4"),
        (ddp, {"j": "0:1x4"}, "--nnodes 1:1 --nproc-per-node 4"),
        (ddp, {"j": "2:5x4"}, "--nnodes 2:5 --nproc-per-node 4"),
        (spmd, {"h": "aws_p4d.24xlarge", "j": "2"}, "--nnodes 2:2 --nproc-per-node 8"),
        (spmd, {"h": "aws_p4d.24xlarge", "j": "2:4"}, "--nnodes 2:4 --nproc-per-node 8"),
        (spmd, {"h": "aws_m5.2xlarge", "j": "2:4x3"}, "--nnodes 2:4 --nproc-per-node 3"),
        (ddp, {"j": "2x1"}, '--rdzv-backend c10d --rdzv-endpoint "$${${rank0_env}:-localhost}:29500"'),
        (ddp, {"j": "2x1", "rdzv_port": 7}, ':-localhost}:7"'),
        (ddp, {"j": "2x1", "rdzv_backend": "static"}, '--rdzv-backend static --rdzv-endpoint "$${${rank0_env}:'),
        (ddp, {"j": "2x1", "rdzv_backend": "static"}, "--node-rank ${replica_id}"),
        (ddp, {"j": "2x1", "server": "role"}, '--endpoint "$${${rank0_env}:-localhost}:29500"'),
        (spmd, {"j": "2x1", "server": "rdzv:29400,other:29400"}, "--endpoint rdzv:29400,other:29400"),
        (ddp, {"tee": 1}, "--tee 1"),
    ],
)
def test_arguments_become_flags(make: Any, given: dict[str, Any], words: str) -> None:
    assert words in command(make(script="my/train.py", **given))


def test_a_module_its_arguments_its_names_and_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    app = ddp("--lr", "$x y", m="my.train-it", name="experiment/", env={"A": "1"}, debug=True, h="aws_p4d.24xlarge")
    (role,) = app.roles
    assert command(app).endswith(" -m my.train-it --lr '$x y'") and '--node-id "train_it-${replica_id}"' in command(app)
    assert (app.name, role.name, role.resource.gpu) == ("train-it", "train_it", 8), "no hyphen: Kubernetes' variables"
    expected = {"A": "1", "LOGLEVEL": "DEBUG", "TORCHX_TRACKING_EXPERIMENT_NAME": "experiment"}
    assert role.env.items() >= {*expected.items(), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, words.torchx.SCRIPT_AND_MODULE),
        ({"script": "a", "m": "b"}, words.torchx.SCRIPT_AND_MODULE),
        ({"script": "a", "rdzv_backend": "etcd"}, words.torchx.not_a_backend(("c10d", "static"), "etcd")),
        ({"script": "a", "server": "here"}, words.torchx.not_a_server("here")),
        ({"script": "a", "j": "2by2"}, "Invalid format for -j"),
    ],
)
def test_invalid_values_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        ddp(**given)


def _write() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        settle(patch)
        for scheduler, cfg, name, arguments in CASES:
            path = JOBS / f"{scheduler}-{name}.txt"
            path.write_text(job(scheduler, cfg, arguments))
            yield path


if __name__ == "__main__":
    for path in _write():
        print(path)
