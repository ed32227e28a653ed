"""Checks of one machine with GPUs. Each starts a real agent with real workers, and returns what it saw."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from msgspec import Struct

from benchmarks.stage import Broken, Program, Stage
from node_agent.features.free_gpus.feature import PROGRAM
from node_agent.kernel.processes.orphans_helper import look_at

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
PATIENCE_S = 120.0
HANG_LIMIT_S = 8
Line = dict[str, Any]


class Skipped(Exception):
    """Reason why this machine cannot run a check."""


class Seen(Struct, frozen=True, kw_only=True):
    """Outcome of one check. `figures`: measured values with their units in their names."""

    name: str
    verdict: str
    """`ok`, `failed` or `skipped`."""
    detail: str
    figures: Mapping[str, float] = {}
    took_s: float = 0.0


class Found(Struct, frozen=True):
    """Result of a check: a sentence, and figures."""

    detail: str
    figures: dict[str, float] = {}


Check = Callable[[], Found]


def every(checks: Mapping[str, Check], report: Callable[[Seen], None]) -> list[Seen]:
    """Make the checks one after another. A check that fails does not stop the next one."""
    seen = []
    for name, check in checks.items():
        began_s = time.monotonic()
        try:
            smi("index")
            found = check()
            one = Seen(name=name, verdict="ok", detail=found.detail, figures=found.figures)
        except Skipped as why:
            one = Seen(name=name, verdict="skipped", detail=str(why))
        except (Broken, AssertionError, OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
            one = Seen(name=name, verdict="failed", detail=f"{type(error).__name__}: {error}".strip())
        one = Seen(**{**_fields(one), "took_s": round(time.monotonic() - began_s, 1)})
        report(one)
        seen.append(one)
    return seen


def _fields(seen: Seen) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in seen.__struct_fields__}


def smi(*fields: str) -> list[list[str]]:
    """Return rows of nvidia-smi. Raises `Skipped` if this machine has no NVIDIA GPU."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Skipped(f"nvidia-smi cannot be run: {error}") from None
    return [[cell.strip() for cell in row.split(",")] for row in printed.splitlines() if row.strip()]


def gpus() -> int:
    return len(smi("index"))


def used_mib() -> float:
    """Return the memory in use on all GPUs."""
    return sum(float(row[0]) for row in smi("memory.used"))


class Run:
    """A standalone agent on a stage, and what its workers have printed."""

    def __init__(self, stage: Stage, *flags: str, what: str, nproc: str = "gpu", env: Mapping[str, str] | None = None):
        command = [sys.executable, "-m", "node_agent", "--standalone", "--nproc", nproc, *flags, WORKER, what]
        self._stage = stage
        self.agent: Program = stage.start(command, env)

    def lines(self) -> list[Line]:
        return [json.loads(each) for each in re.findall(r"GPU (\{.*\})", self.agent.text())]

    def until(self, holds: Callable[[list[Line]], bool], within_s: float = PATIENCE_S) -> list[Line]:
        """Return the workers' lines once it is so. Raises `Broken`."""
        ends_s = time.monotonic() + within_s
        while not holds(lines := self.lines()):
            if self.agent.exit_code is not None and not holds(self.lines()):
                raise Broken(f"the agent ended with {self.agent.exit_code}\n{self._stage.log_tails()}")
            if time.monotonic() > ends_s:
                raise Broken(f"not within {within_s:g} s\n{self._stage.log_tails()}")
            time.sleep(0.02)
        return lines

    def ends(self, within_s: float = PATIENCE_S) -> int:
        """Return the agent's exit code. Raises `Broken`."""
        ends_s = time.monotonic() + within_s
        while self.agent.exit_code is None:
            if time.monotonic() > ends_s:
                raise Broken(f"the agent still runs after {within_s:g} s\n{self._stage.log_tails()}")
            time.sleep(0.02)
        return self.agent.exit_code


def started(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of workers that have made their first all_reduce."""
    return [line for line in lines if "times" in line]


def one_worker_per_gpu() -> Found:
    with Stage() as stage:
        began_s = time.monotonic()
        run = Run(stage, what="once")
        code = run.ends()
        took_s = time.monotonic() - began_s
        lines = started(run.lines())
        assert code == 0, stage.log_tails()
    assert len(lines) == gpus() and all(line["sum"] == line["world"] == gpus() for line in lines), lines
    one = lines[0]
    return Found(
        f"{len(lines)} x {one['name']}, torch {one['torch']}, CUDA {one['cuda']}, NCCL {one['nccl']}",
        {"launch to the end, s": round(took_s, 2)},
    )


def visible_devices() -> Found:
    uuid = smi("uuid")[0][0]
    seen = []
    for form in ("0", uuid, uuid[:12]):
        with Stage() as stage:
            run = Run(stage, what="once", env={"CUDA_VISIBLE_DEVICES": form})
            assert run.ends() == 0 and len(started(run.lines())) == 1, f"{form}: {stage.log_tails()}"
            seen.append(form)
    for form in ("", "-1"):
        with Stage() as stage:
            run = Run(stage, what="once", env={"CUDA_VISIBLE_DEVICES": form})
            assert run.ends() == 2, f"CUDA_VISIBLE_DEVICES={form}: {stage.log_tails()}"
            seen.append(f"{form!r} (refused)")
    return Found(f"CUDA_VISIBLE_DEVICES as {', '.join(seen)}")


def migs() -> Found:
    if not any("Enabled" in row[0] for row in smi("mig.mode.current")):
        raise Skipped("no GPU has MIG enabled")
    return one_worker_per_gpu()


def numa_binding() -> Found:
    all_cpus, bound = sorted(os.sched_getaffinity(0)), []
    for how in ("node", "socket", "exclusive", "core-complex"):
        with Stage() as stage:
            run = Run(stage, "--numa-binding", how, what="once")
            assert run.ends() == 0, f"{how}: {stage.log_tails()}"
            cpus = [line["cpus"] for line in started(run.lines())]
        assert cpus and all(each and set(each) <= set(all_cpus) for each in cpus), (how, cpus)
        bound.append(f"{how}: {', '.join(str(len(each)) for each in cpus)}")
    return Found(f"CPUs of each worker, of {len(all_cpus)}: {'; '.join(bound)}")


def node_checks() -> Found:
    command = [sys.executable, "-m", "node_agent", "--check", "gpus,ecc,xid,disk,shm", "--check-only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (0, 71), done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return Found("; ".join(lines))


def killed_worker(*flags: str) -> Found:
    """SIGKILL one worker; every worker starts again, and the dead ones' memory is back."""
    with Stage() as stage:
        run = Run(stage, "--max-restarts", "1", *flags, what="stay")
        first = run.until(lambda lines: len([each for each in lines if "keeps" in each]) == gpus())
        held_mib = used_mib()
        killed_s = time.monotonic()
        os.kill(started(first)[0]["pid"], signal.SIGKILL)
        run.until(lambda lines: len(started(lines)) == 2 * gpus())
        back_s = time.monotonic() - killed_s
        run.until(lambda lines: len([each for each in lines if "keeps" in each]) == 2 * gpus())
        again_mib = used_mib()
    assert again_mib < held_mib + 512, f"{held_mib:g} MiB before, {again_mib:g} MiB after the restart"
    figures = {"SIGKILL to the next all_reduce, s": round(back_s, 2), "MiB before": held_mib, "MiB after": again_mib}
    return Found("the restarted workers use as much memory as the first ones", figures)


def warm_workers() -> Found:
    return killed_worker("--preload", "torch,torch.distributed")


def killed_agent() -> Found:
    """SIGKILL the agent; nothing of its workers is left on the GPU."""
    before_mib = used_mib()
    with Stage() as stage:
        run = Run(stage, what="stay")
        lines = run.until(lambda lines: len([each for each in lines if "keeps" in each]) == gpus())
        held_mib = used_mib()
        pids, killed_s = [line["pid"] for line in started(lines)], time.monotonic()
        os.kill(run.agent.pid, signal.SIGKILL)
        while any(map(look_at, pids)):
            assert time.monotonic() < killed_s + PATIENCE_S, "workers outlive their agent"
            time.sleep(0.01)
        gone_s = time.monotonic() - killed_s
        while used_mib() > before_mib + 64:
            assert time.monotonic() < killed_s + PATIENCE_S, f"{used_mib():g} MiB stay in use ({before_mib:g} before)"
            time.sleep(0.05)
        free_s = time.monotonic() - killed_s
    assert held_mib > before_mib + 1000
    return Found(
        "workers end with their agent, and their memory is free",
        {"workers gone, s": round(gone_s, 2), "memory free, s": round(free_s, 2)},
    )


def full_gpus_again() -> Found:
    """SIGKILL a worker that holds 80 % of its GPU; the next one gets as much at its first try."""
    with Stage() as stage:
        run = Run(stage, "--max-restarts", "1", what="most")
        first = run.until(lambda lines: len([each for each in lines if "keeps" in each]) == gpus())
        killed_s = time.monotonic()
        os.kill(started(first)[0]["pid"], signal.SIGKILL)
        run.until(lambda lines: len([each for each in lines if "keeps" in each]) == 2 * gpus())
        back_s = time.monotonic() - killed_s
        waits = re.findall(r"GPU memory of ended workers[^\n]*", run.agent.text())
    said = waits[-1] if waits else "the memory was free before the new workers were ready to start"
    return Found(said, {"SIGKILL to 80 % of the memory again, s": round(back_s, 2)})


def holders_by_nvml() -> Found:
    """The helper of --gpu-free-timeout names a worker that holds a GPU, and notices when it is gone."""
    with Stage() as stage:
        run = Run(stage, what="stay")
        lines = run.until(lambda lines: len([each for each in lines if "keeps" in each]) == gpus())
        pids = {line["pid"] for line in started(lines)}
        with open(f"/proc/{min(pids)}/environ", "rb") as file:
            mark = next(each for each in file.read().split(b"\0") if each.startswith(b"NODE_AGENT_ID="))
        ours, theirs = socket.socketpair()
        with ours, theirs, subprocess.Popen(
            [sys.executable, "-IS", PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        ) as helper, ours.makefile("rb") as told:  # fmt: skip
            theirs.close()
            ours.settimeout(PATIENCE_S)
            began_s = time.monotonic()
            order = {
                "mark": mark.decode(), "survivors": [], "kept": [], "known": [], "is_first": False, "devices": None,
                "order": "",
            }  # fmt: skip
            ours.sendall(json.dumps(order).encode() + b"\n")
            reports = [json.loads(told.readline() or b"{}"), json.loads(told.readline() or b"{}")]
            first_s = time.monotonic() - began_s
            os.kill(run.agent.pid, signal.SIGKILL)
            reports += [json.loads(line) for line in told]
            helper.wait()
    problems = [report["problem"] for report in reports if "problem" in report]
    assert not problems, problems
    holders = [holder for report in reports for holder in report.get("holders", ())]
    assert reports[-1] == {"holders": []}, reports[-1]
    if named := {holder["pid"] for holder in holders} & pids:
        assert named == pids and max(holder["mib"] or 0 for holder in holders) > 1000, holders
        said = f"named {len(named)} workers, such as {holders[0]['command']}"
    else:
        said = f"NVML reports other pids than this machine's: {sorted({holder['pid'] for holder in holders})[:4]}"
    return Found(said, {"first report, s": round(first_s, 3)})


def hang_in_a_kernel() -> Found:
    return _hang("kernel", "synchronize")


def hang_in_a_collective() -> Found:
    if gpus() < 2:
        raise Skipped("one GPU: NCCL takes one process for each GPU, so no collective can wait")
    return _hang("collective", "sleep")


def _hang(what: str, in_stack: str) -> Found:
    with Stage() as stage:
        logs = os.path.join(stage.folder, "logs")
        flags = ("--progress-timeout", f"start=60,step={HANG_LIMIT_S}", "--on-hang", "fail", "--log-dir", logs)
        run = Run(stage, *flags, what=what)
        run.until(lambda lines: len([each for each in lines if "hangs" in each]) == gpus())
        hung_s = time.monotonic()
        code = run.ends()
        found_s = time.monotonic() - hung_s
        evidence = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(logs) if "evidence" in folder for name in names
        ]  # fmt: skip
        texts = {path: _text(path) for path in evidence}
        printed = run.agent.text()
    assert code == 1 and "no progress for" in printed, printed[-2000:]
    kinds = sorted({re.sub(r"\d+", "N", os.path.basename(path)) for path in evidence})
    has_stack = any(in_stack in text for text in texts.values())
    assert has_stack or not find_spec("py_spy"), f"{in_stack} is in none of {kinds}"
    blamed = re.findall(r"(?:rank|ranks) [\d, ]+[^\n]{0,160}", printed)
    return Found(
        f"evidence: {', '.join(kinds)}; {blamed[-1] if blamed else 'the agent named no rank'}",
        {f"found after the limit of {HANG_LIMIT_S} s, s": round(found_s - HANG_LIMIT_S, 2)},
    )


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def full_memory() -> Found:
    with Stage() as stage:
        run = Run(stage, what="memory", nproc="1")
        code = run.ends()
        printed = run.agent.text()
    assert code == 1 and "out of memory" in printed, printed[-2000:]
    hint = [
        line for line in printed.splitlines() if "memory" in line and ("what to do" in line or "hint" in line.lower())
    ]
    return Found((hint[-1] if hint else "no hint").strip())


def two_workers_on_one_gpu() -> Found:
    with Stage() as stage:
        run = Run(stage, what="once", nproc=str(gpus() + 1))
        code = run.ends()
        printed = run.agent.text()
    assert code != 0, "more workers than GPUs succeeded"
    return Found(_hint(printed))


def _hint(printed: str) -> str:
    """Return what the agent advises, or its error."""
    found = re.findall(r"what to do: (.+)", printed) or re.findall(r"error: (.+)", printed)
    return str(found[-1]) if found else "no hint"


def restart_costs() -> Found:
    """Split a cold and a warm start of a worker into what it pays."""
    figures: dict[str, float] = {}
    for kind, flags in (("cold", ()), ("warm", ("--preload", "torch,torch.distributed"))):
        with Stage() as stage:
            run = Run(stage, "--max-restarts", "1", *flags, what="stay")
            first = started(run.until(lambda lines: len(started(lines)) == gpus()))
            run.until(lambda lines: len([each for each in lines if "keeps" in each]) == gpus())
            killed_s = time.monotonic()
            os.kill(first[0]["pid"], signal.SIGKILL)
            again = started(run.until(lambda lines: len(started(lines)) == 2 * gpus()))[-1]["times"]
        figures[f"{kind}: SIGKILL to the script's first line, s"] = round(again["exec"] - killed_s, 3)
        order = list(again)
        for before, after in pairwise(order):
            figures[f"{kind}: {after}, s"] = round(again[after] - again[before], 3)
    return Found("what a restarted worker pays, one after another", figures)


CHECKS: dict[str, Check] = {
    "a worker for each GPU, NCCL": one_worker_per_gpu,
    "forms of CUDA_VISIBLE_DEVICES": visible_devices,
    "MIG": migs,
    "NUMA binding": numa_binding,
    "checks of the node": node_checks,
    "a killed worker": killed_worker,
    "a killed worker, warm": warm_workers,
    "a killed worker with 80 % of the memory": full_gpus_again,
    "who holds a GPU, by NVML": holders_by_nvml,
    "a killed agent": killed_agent,
    "a hang in a kernel": hang_in_a_kernel,
    "a hang in a collective": hang_in_a_collective,
    "memory that is full": full_memory,
    "more workers than GPUs": two_workers_on_one_gpu,
    "what a restart costs": restart_costs,
}
