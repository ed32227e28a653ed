"""The job scripts of deploy/slurm on a real Slurm of four nodes: unchanged, with options on the command line."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from node_agent.features.warm import words as warm_words
from node_agent.words import connection, leaving
from rdzv_server.words import completion, runs, startup
from tests.support.message_search import has_message, pattern
from tests.support.process_info import until
from tests.support.programs import TORCH_WORKER, WORKER, Program
from tests.support.slurm import PATIENCE_S, Slurm
from tests.support.worker_hub import Worker, WorkerHub, of_node, restart_count

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("programs")]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy" / "slurm"
NO_MORE: Mapping[str, str] = {}
SAVES = """
import os, pathlib, signal, sys

saved = pathlib.Path(f"{sys.argv[1]}-{os.environ['RANK']}")
if saved.exists():
    sys.exit(print("goes on from what it saved"))

def save(*_):
    saved.touch()
    sys.exit(print("saved"))

signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
while True:
    signal.pause()
"""

LINGERS = """
import os, signal, sys, time

def end(*_):
    if os.environ["SLURMD_NODENAME"] != "n1":
        time.sleep(3)
        open(sys.argv[1], "w").close()
    sys.exit()

signal.signal(signal.SIGTERM, end)
print("trains", flush=True)
while True:
    signal.pause()
"""


def submit(
    slurm: Slurm, name: str, hub: WorkerHub, *options: str,
    flags: str = "", server: str = "", worker: str = WORKER, env: Mapping[str, str] = NO_MORE,
) -> str:  # fmt: skip
    """Submit a script with workers that report to the hub."""
    added = {**hub.env, "RDZV_SERVER": server, **env}
    return slurm.submit(*options, str(SCRIPTS / f"{name}.sbatch"), *flags.split(), worker, env=added)


def after(slurm: Slurm, job: str) -> str:
    """Submit a job that waits for the success of another one."""
    return slurm.submit(f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes", "--wrap", "true")


async def serve(slurm: Slurm) -> str:
    """Start a server on the login node, and return its address."""
    command = slurm.on_login("rdzv-server", "--store", "memory", "--port", "29400")
    await (await Program.start(*command, env=slurm.env)).line("listening on")
    return "login:29400"


async def test_the_jobs_status_is_the_runs_and_ranks_follow_the_topology(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "fixed", hub, "--nodes=3", "--nodelist=n[1-3]", "--job-name=train")
    chained = after(slurm, job)
    workers = await hub.group(3)
    # n1 and n3 are at one switch.
    assert [worker.env["SLURMD_NODENAME"] for worker in workers] == ["n1", "n3", "n2"]
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"
    assert await slurm.ended(chained) == "COMPLETED"
    assert (slurm.folder / f"train-{job}.log").exists()
    assert "touch:" not in slurm.output(job)


async def test_a_job_that_asks_for_cpus_gets_all_its_nodes_with_these_cpus(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "elastic", hub, "--nodes=2-3", "--cpus-per-task=3", flags="--nnodes 3")
    workers = await hub.group(3)
    assert {worker.env["SLURM_CPUS_ON_NODE"] for worker in workers} == {"3"}
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"


def test_every_script_gives_the_jobs_cpus_to_its_step() -> None:
    """Without the flag, srun binds a task to one CPU if Slurm binds tasks. The Slurm of these tests binds none."""
    scripts = list(SCRIPTS.glob("*.sbatch"))
    given = '${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}'
    assert scripts
    for script in scripts:
        (step,) = re.findall(r"^srun .*", script.read_text(), re.MULTILINE)
        assert given in step, script.name


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda script: script.stem)
def test_a_script_asks_slurm_once_whether_it_preempts_the_job(script: Path, tmp_path: Path) -> None:
    """If nobody reads all that scontrol writes, it fails, and the script asks again until Slurm kills it."""
    asks = re.findall(r"^(?:ask_slurm|is_preempted)\(\) .*", script.read_text(), re.MULTILINE)
    assert len(asks) == 2
    answers = (
        f"scontrol() {{ echo >>{tmp_path}/calls; echo PreemptTime=2030; head -c 1000000 /dev/zero | tr '\\0' '\\n'; }}"
    )
    program = "\n".join((answers, "sleep() { :; }", *asks, "is_preempted"))
    subprocess.run(["bash", "-c", program], check=True, timeout=60)
    assert (tmp_path / "calls").read_text() == "\n"


def test_an_excluded_node_is_drained_and_a_name_for_several_nodes_drains_none(slurm: Slurm) -> None:
    """An agent chooses its node's name. Slurm takes such names as several nodes."""
    program = str(ROOT / "deploy" / "on-exclude" / "slurm")
    about = {"RDZV_REASON": "a check failed", "RDZV_CONDITION": "DiskFull", "RDZV_CLASS": "temporary"}
    for name in ("ALL", "n[1-4]", "n1,n2", ""):
        with pytest.raises(subprocess.CalledProcessError):
            slurm.call(program, env=about | {"RDZV_NODE": name})
    assert "drain" not in slurm.call("sinfo", "--noheader", "--format=%T")
    slurm.call(program, env=about | {"RDZV_NODE": "n2"})
    assert slurm.call("sinfo", "--noheader", "--states=drain", "--format=%N") == "n2"


async def test_a_failed_run_is_a_failed_job(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "fixed", hub, flags="--max-restarts 0")
    chained = after(slurm, job)
    (await hub.group(2))[1].order_exit(3)
    assert await slurm.ended(job) == "FAILED"
    assert await slurm.ended(chained) == "CANCELLED"
    assert "Root Cause" in slurm.output(job)


@pytest.mark.parametrize(
    ("name", "is_warm"),
    [("elastic", False), pytest.param("elastic", True, marks=pytest.mark.torch), ("login-server", False)],
)
async def test_a_spare_takes_the_place_of_a_lost_node(slurm: Slurm, hub: WorkerHub, name: str, is_warm: bool) -> None:
    """Warm workers have torch, and one node less."""
    server = await serve(slurm) if name == "login-server" else ""
    size, worker, warm = (2, TORCH_WORKER, "--preload torch.distributed") if is_warm else (3, WORKER, "")
    flags = f"--nnodes 2:{size} --last-call-timeout 500 {warm}"
    job = submit(slurm, name, hub, f"--nodes={size + 1}", flags=flags, server=server, worker=worker)
    chained = after(slurm, job)
    workers = await hub.group(size)
    (lost,) = of_node(workers, 1)
    slurm.lose(lost.env["SLURMD_NODENAME"])
    workers = await hub.group(size)
    assert workers[0].env["TORCHELASTIC_RESTART_COUNT"] == "0"
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"
    assert await slurm.ended(chained) == "COMPLETED"
    assert len(re.findall(pattern(warm_words.start_warm, modules="torch.distributed"), slurm.output(job))) == (
        3 if is_warm else 0
    )


async def test_a_node_powered_off_while_it_works_is_lost(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "elastic", hub, flags="--nnodes 2:3 --last-call-timeout 500")
    (down,) = of_node(await hub.group(3), 1)
    slurm.set_down(down.env["SLURMD_NODENAME"])
    await down.gone()
    for worker in await hub.group(3):
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"


async def test_a_killed_server_is_started_again_without_an_effect_on_workers(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "fixed", hub)
    workers = await hub.group(2)
    slurm.kill("rdzv-server")
    await until(lambda: "continuing with 1 run" in slurm.output(job))
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"
    assert len(hub.all) == 2


async def test_a_fixed_run_that_has_lost_an_agent_fails_when_it_has_waited_for_it(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "fixed", hub, flags="--join-timeout 2")
    workers = await hub.group(2)
    os.kill(workers[1].agent_pid, signal.SIGKILL)
    assert await slurm.ended(job) == "FAILED"
    assert runs.join_timeout(completion.too_few(1, 1, 2, "n1", gone="n")) in slurm.output(job)


async def test_a_job_that_has_too_few_nodes_without_its_first_starts_again(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "elastic", hub, "--nodes=2", flags="--join-timeout 2")
    await hub.group(2)
    await until(lambda: re.search(pattern(startup.serves), slurm.output(job)) is not None)
    slurm.lose("n1")
    hub.patience_s = PATIENCE_S
    for worker in await hub.group(2):
        worker.order_exit(0)
    assert await slurm.reaches(job, "COMPLETED", restarts=1)


async def test_a_job_continues_without_its_first_node_and_ends_with_the_runs_status(
    slurm: Slurm, hub: WorkerHub
) -> None:
    """Slurm does not know yet that the node is lost: its controller takes minutes to notice."""
    job = submit(slurm, "elastic", hub, "--job-name=train", flags="--nnodes 3:4 --last-call-timeout 5")
    chained = after(slurm, job)
    await hub.group(4)
    await until(lambda: len(re.findall(pattern(startup.serves), slurm.output(job))) == 2)
    slurm.power_off("n1")
    hub.patience_s = PATIENCE_S
    workers = await hub.group(3)
    assert {worker.env["SLURMD_NODENAME"] for worker in workers} == {"n2", "n3", "n4"}
    assert slurm.job(job)["JobState"] == "RUNNING"
    for worker in workers:
        worker.order_exit(0)
    await until((slurm.folder / f".{job}.ended").exists)
    slurm.set_down("n1")
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
    assert await slurm.ended(chained) == "COMPLETED"
    assert not list(slurm.folder.glob(f".{job}.*"))
    for node in ("n2", "n3", "n4"):
        lines = (slurm.folder / f"train-{job}.{node}.log").read_text().splitlines()
        assert all(line.startswith(f"{node}: ") for line in lines)
        assert any("node-agent: run succeeded" in line for line in lines)
    assert all(re.match(r"n[1-4]: ", line) for line in slurm.output(job).splitlines() if "node-agent: " in line)


SLOW_SQUEUE = """\
#!/bin/sh
[ "$SLURMD_NODENAME" != n2 ] || sleep 10
exec "{squeue}" "$@"
"""


def slow_on_n2(slurm: Slurm, folder: Path) -> Mapping[str, str]:
    """Return an environment where the node that serves needs long to write how the run ended."""
    (command := folder / "squeue").write_text(SLOW_SQUEUE.format(squeue=shutil.which("squeue")))
    command.chmod(0o755)
    return {"PATH": f"{folder}:{slurm.env['PATH']}"}


async def continues(
    slurm: Slurm, hub: WorkerHub, lose: Callable[[str], None], flags: str = "", env: Mapping[str, str] = NO_MORE
) -> tuple[str, list[Worker]]:
    """Submit a job of three nodes, and lose the first one. Return the job, and the workers that continue."""
    flags = f"--nnodes 2:3 --last-call-timeout 5 {flags}"
    job = submit(slurm, "elastic", hub, "--nodes=2-3", "--job-name=train", flags=flags, env=env)
    await hub.group(3)
    await until(lambda: len(re.findall(pattern(startup.serves), slurm.output(job))) == 2)
    lose("n1")
    hub.patience_s = PATIENCE_S
    return job, await hub.group(2)


async def test_a_run_that_fails_without_its_first_node_is_a_failed_job(slurm: Slurm, hub: WorkerHub) -> None:
    job, workers = await continues(slurm, hub, slurm.lose, "--max-restarts 0")
    workers[0].order_exit(3)
    assert await slurm.reaches(job, "FAILED", restarts=1)


async def test_no_node_requeues_the_job_before_the_serving_node_has_written_the_runs_end(
    slurm: Slurm, hub: WorkerHub, tmp_path: Path
) -> None:
    job, workers = await continues(slurm, hub, slurm.lose, "--max-restarts 0", slow_on_n2(slurm, tmp_path))
    workers[0].order_exit(3)
    assert await slurm.reaches(job, "FAILED", restarts=1)


async def test_the_end_of_a_run_is_not_lost_if_no_controller_answers(slurm: Slurm, hub: WorkerHub) -> None:
    """As it may be if it has just lost many nodes."""
    job, workers = await continues(slurm, hub, slurm.power_off)
    with slurm.without_controller():
        for worker in workers:
            worker.order_exit(0)
        log = slurm.folder / f"train-{job}.n2.log"
        await until(lambda: "slurm_load_jobs error" in log.read_text(), PATIENCE_S)
    await until((slurm.folder / f".{job}.ended").exists, PATIENCE_S)
    slurm.set_down("n1")
    assert await slurm.reaches(job, "COMPLETED", restarts=1)


async def test_a_succeeded_run_is_not_repeated_if_its_serving_nodes_are_lost_one_after_the_other(
    slurm: Slurm, hub: WorkerHub, tmp_path: Path
) -> None:
    """The second one is lost before it has written how the run ended."""
    job, workers = await continues(slurm, hub, slurm.lose, env=slow_on_n2(slurm, tmp_path))
    for worker in workers:
        worker.order_exit(0)
    await until(lambda: bool(list(slurm.folder.glob(f".{job}.finished.0.n3"))), PATIENCE_S)
    slurm.lose("n2")
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
    assert len(hub.all) == 5


async def test_a_job_of_a_login_servers_run_ends_though_slurm_notices_the_loss_of_its_first_node_late(
    slurm: Slurm, hub: WorkerHub
) -> None:
    flags = "--nnodes 2:3 --last-call-timeout 5"
    job = submit(slurm, "login-server", hub, "--nodes=3", flags=flags, server=await serve(slurm))
    await hub.group(3)
    slurm.power_off("n1")
    for worker in await hub.group(2):
        worker.order_exit(0)
    await until(lambda: len(list(slurm.folder.glob(f".{job}.finished.*"))) == 2, PATIENCE_S)
    assert slurm.job(job)["JobState"] == "RUNNING"
    slurm.set_down("n1")
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
    assert not list(slurm.folder.glob(f".{job}.*"))


async def test_an_agent_that_leaves_a_login_servers_run_does_not_requeue_the_job_of_the_others(
    slurm: Slurm, hub: WorkerHub
) -> None:
    """Although the first node is lost."""
    flags = "--nnodes 2:4 --last-call-timeout 5"
    job = submit(slurm, "login-server", hub, "--nodes=3-4", flags=flags, server=await serve(slurm))
    await hub.group(4)
    slurm.lose("n1")
    leaver, *_ = await hub.group(3)
    os.kill(leaver.agent_pid, signal.SIGTERM)
    workers = await hub.group(2)
    await until((slurm.folder / f".{job}.finished.0.{leaver.env['SLURMD_NODENAME']}").exists)
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
    assert len(hub.all) == 9


async def test_before_the_time_limit_workers_save_and_the_job_starts_again(slurm: Slurm) -> None:
    (slurm.folder / "saves.py").write_text(SAVES)
    env = {"RDZV_SERVER": await serve(slurm)}
    jobs = {}
    for name in ("fixed", "elastic", "login-server", "array"):
        options = ("--time=30", "--signal=B:USR1@60", *(["--array=1"] if name == "array" else ["--nodes=2"]))
        script = (str(SCRIPTS / f"{name}.sbatch"), "saves.py", f"{slurm.folder}/{name}")
        jobs[name] = slurm.submit(*options, *script, env=env)
    nodes = {name: 1 + (name != "array") for name in jobs}
    for name, job in jobs.items():
        await until(lambda job=job, nodes=nodes[name]: slurm.output(job).count("trains") == nodes)
        slurm.limit(job, minutes=2)
    for name, job in jobs.items():
        assert await slurm.reaches(job, "COMPLETED", restarts=1)
        written = slurm.output(job)
        for words in ("trains", "SIGUSR1: leaving the run", "saved", "goes on from what it saved"):
            assert written.count(words) >= nodes[name], words


async def test_a_job_that_slurm_preempts_starts_again_although_its_script_gets_no_signal(slurm: Slurm) -> None:
    """Slurm signals only the agents if the partition has a GraceTime, unless slurm.conf has send_user_signal."""
    (slurm.folder / "saves.py").write_text(SAVES)
    env = {"RDZV_SERVER": await serve(slurm)}
    jobs = {}
    for name in ("fixed", "elastic", "login-server", "array"):
        options = ("--partition=preemptable", "--exclusive", "--array=1" if name == "array" else "--nodes=1")
        script = (str(SCRIPTS / f"{name}.sbatch"), "saves.py", f"{slurm.folder}/{name}-preempted")
        jobs[name] = slurm.submit(*options, *script, env=env)
    for job in jobs.values():
        await until(lambda job=job: "trains" in slurm.output(job))
    slurm.submit("--partition=urgent", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "true")
    for job in jobs.values():
        assert await slurm.reaches(job, "COMPLETED", restarts=1)
        for words in ("SIGTERM: leaving the run", "saved", "goes on from what it saved"):
            assert words in slurm.output(job), words


@pytest.mark.parametrize("name", ["fixed", "elastic"])
async def test_a_signal_to_all_processes_of_a_job_leaves_it_its_server(slurm: Slurm, name: str) -> None:
    """The workers of all nodes can save together, and the job starts again at once."""
    (slurm.folder / "saves.py").write_text(SAVES)
    script = (str(SCRIPTS / f"{name}.sbatch"), "saves.py", f"{slurm.folder}/{name}-full")
    job = slurm.submit("--nodes=2", *script)
    await until(lambda: slurm.output(job).count("trains") == 2)
    slurm.call("scancel", "--signal=USR1", "--full", job)
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
    assert not has_message(slurm.output(job), connection.server_lost)


async def test_a_wrong_flag_fails_the_job_even_while_its_server_starts(slurm: Slurm, hub: WorkerHub) -> None:
    for job in [submit(slurm, name, hub, "--nodes=2", flags="--max-resets 3") for name in ("fixed", "elastic")]:
        assert await slurm.ended(job) == "FAILED"
        assert "--max-resets" in slurm.output(job)


async def test_scancel_leaves_nothing_behind(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "elastic", hub)
    workers = await hub.group(4)
    assert slurm.processes("node_agent|node-agent")
    slurm.call("scancel", job)
    for worker in workers:
        await worker.gone()
    assert await slurm.ended(job) == "CANCELLED"
    assert slurm.processes("node-agent|rdzv-server|worker.py|helper") == {}


@pytest.mark.parametrize("name", ["elastic", "login-server"])
async def test_scancel_is_final_though_the_first_node_is_done_before_the_others(slurm: Slurm, name: str) -> None:
    """Slurm removes finished nodes from the job's list. The agents must not treat the first one as lost."""
    (slurm.folder / "lingers.py").write_text(LINGERS)
    server = await serve(slurm) if name == "login-server" else ""
    lingered = slurm.folder / f"{name}.lingered"
    script = (str(SCRIPTS / f"{name}.sbatch"), "--nnodes", "2", "lingers.py", str(lingered))
    job = slurm.submit("--nodes=2", *script, env={"RDZV_SERVER": server})
    await until(lambda: slurm.output(job).count("trains") == 2)
    slurm.call("scancel", job)
    await until(lingered.exists)
    await until(lambda: not slurm.processes("node-agent|worker.py|helper|scontrol|squeue"))
    assert await slurm.ended(job) == "CANCELLED"
    assert slurm.job(job)["Restarts"] == "0"


def slurm_section(page: str) -> str:
    """Return the section of a page about Slurm, or the whole page if it has no such section."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return text.partition("\n## Slurm\n")[2].partition("\n## ")[0] or text


@pytest.mark.parametrize(
    ("page", "size"),
    [("how-to/clusters", 3), ("how-to/slurm", 3), ("how-to/migrate-from-torchrun", 4)],
)
async def test_the_job_of_a_page(slurm: Slurm, hub: WorkerHub, page: str, size: int) -> None:
    (command,) = re.findall(r"^sbatch (.*)$", slurm_section(page), re.MULTILINE)
    here = {"8": "1", "train.py": WORKER, "--gpus-per-node=8": "--cpus-per-task=1"}
    words = command.replace("deploy/slurm", str(SCRIPTS)).split()
    job = slurm.submit(*(here.get(word, word) for word in words), env=hub.env)
    for worker in await hub.group(size):
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"


async def test_a_script_that_was_written_for_torchrun(slurm: Slurm, hub: WorkerHub) -> None:
    """The line of the migration page: the node of rank 0 hosts the server."""
    (script,) = re.findall(
        r"^(export head=.*?)^```", slurm_section("how-to/migrate-from-torchrun"), re.MULTILINE | re.DOTALL
    )
    script = script.replace("train.py", WORKER).replace("--nproc-per-node 8", "--nproc-per-node 1")
    job = slurm.submit("--nodes=2", "--ntasks-per-node=1", "--wrap", script, env=hub.env)
    for worker in await hub.group(2):
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"


@pytest.mark.parametrize("words", ["--endpoint auto ", "--endpoint auto@login:29400 "])
async def test_the_commands_on_the_page_of_schedulers(slurm: Slurm, hub: WorkerHub, words: str) -> None:
    """With only this flag the first node hosts the server. Also with an existing server for all jobs."""
    page = (ROOT / "docs" / "how-to" / "schedulers.md").read_text().replace("\\\n", " ")
    (command,) = {line for line in re.findall(r"^srun .*", page, re.MULTILINE) if words in line}
    if "login" in words:
        await serve(slurm)
    job = slurm.submit("--nodes=4", "--no-kill", "--wrap", command.replace("train.py", WORKER), env=hub.env)
    for worker in await hub.group(4):
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"
    assert "rdzv-server at n1:" in slurm.output(job) or "login" in words


async def test_jobs_of_an_array_join_and_leave(slurm: Slurm, hub: WorkerHub) -> None:
    flags = "--nnodes 2:3 --last-call-timeout 500"
    job = submit(slurm, "array", hub, "--array=1-3", flags=flags, server=await serve(slurm))
    await hub.group(3)
    slurm.call("scancel", f"{job}_1")
    await hub.group(2)
    assert await slurm.ended(f"{job}_1") == "CANCELLED"
    slurm.call("scontrol", "requeue", f"{job}_1")
    workers = await hub.group(3)
    assert restart_count(workers) == 0
    for worker in workers:
        worker.order_exit(0)
    for index in (1, 2, 3):
        assert await slurm.ended(f"{job}_{index}") == "COMPLETED"


async def test_the_comment_of_a_job_shows_the_run_and_its_end(slurm: Slurm, hub: WorkerHub) -> None:
    job = submit(slurm, "fixed", hub, flags="--tell-scheduler slurm --lease 2 --nproc 1")
    first = await hub.group(2)
    shown = "Comment=running on 2 nodes, 0 restarts"
    await until(lambda: shown in slurm.call("scontrol", "show", "job", job), pause_s=0.2)
    first[1].order_exit(3)
    for worker in await hub.group(2):
        worker.order_exit(0)
    assert await slurm.ended(job) == "COMPLETED"
    shown = slurm.call("scontrol", "show", "job", job)
    assert "Comment=succeeded on 2 nodes, 1 restart (1 of 3 charged)" in shown


async def test_a_run_is_not_a_success_if_one_node_finished_and_the_server_is_gone(slurm: Slurm, hub: WorkerHub) -> None:
    """The workers of the other node fail, and no server is left that could restart them or fail the run."""
    command = slurm.on_login("rdzv-server", "--store", "memory", "--port", "29400")
    await (server := await Program.start(*command, env=slurm.env)).line("listening on")
    flags = "--nnodes 2 --connect-timeout 3"
    job = submit(slurm, "login-server", hub, "--nodes=2", flags=flags, server="login:29400")
    workers = await hub.group(2)
    await server.kill()
    for worker, code in zip(workers, (0, 3), strict=True):
        worker.order_exit(code)
    assert await slurm.ended(job) == "FAILED"
    assert leaving.OUTCOME_NEEDED in slurm.output(job)


async def test_a_run_is_not_a_success_if_one_node_finished_and_the_others_are_lost(
    slurm: Slurm, hub: WorkerHub
) -> None:
    """The three nodes that could serve are lost while their workers still run."""
    flags = "--nnodes 1:4 --last-call-timeout 5 --server-lost-timeout 3"
    job = submit(slurm, "elastic", hub, "--nodes=1-4", flags=flags)
    workers = await hub.group(4)
    (last,) = (worker for worker in workers if worker.env["SLURMD_NODENAME"] == "n4")
    last.order_exit(0)
    await last.gone()
    for node in ("n1", "n2", "n3"):
        slurm.power_off(node)
    await until((slurm.folder / f".{job}.finished.0.n4").exists, PATIENCE_S)
    for node in ("n1", "n2", "n3"):
        slurm.set_down(node)
    hub.patience_s = PATIENCE_S
    (again,) = await hub.group(1)
    again.order_exit(0)
    assert await slurm.reaches(job, "COMPLETED", restarts=1)


async def test_a_job_whose_time_limit_is_too_short_for_its_notice_logs_this(slurm: Slurm, hub: WorkerHub) -> None:
    """Slurm signals the job within half a minute after its start."""
    job = submit(slurm, "fixed", hub, "--time=3")
    await hub.group(2)
    hub.patience_s = PATIENCE_S
    workers = await hub.group(2)
    assert "give it a longer --time" in slurm.output(job)
    for worker in workers:
        worker.order_exit(0)
    assert await slurm.reaches(job, "COMPLETED", restarts=1)
