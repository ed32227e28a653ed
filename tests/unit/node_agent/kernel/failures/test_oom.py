"""Whether the kernel killed a worker, by the counters of a simulated machine."""

import pytest

from node_agent import words
from node_agent.kernel.failures.oom import OomWatch

WORKER, PROGRAM = 100, 101
"""Pids of a worker, and of a program that it wraps."""
CERTAIN = words.failures.out_of_memory("")


class Machine:
    """Simulated /proc and /sys/fs/cgroup. `membership`: lines of /proc/self/cgroup."""

    def __init__(self, root, *membership: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", "".join(f"{line}\n" for line in membership))

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def kills(self, folder: str, count: int) -> None:
        if "memory/" in f"{folder}/":
            self.write(f"cgroup/{folder}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        else:
            self.write(f"cgroup/{folder}/memory.events", f"low 0\nhigh 0\nmax 7\noom 3\noom_kill {count}\n")

    def moves(self, pid: int, *membership: str) -> None:
        self.write(f"proc/{pid}/cgroup", "".join(f"{line}\n" for line in membership))

    def watch(self) -> OomWatch:
        return OomWatch(str(self.root / "cgroup"), str(self.root / "proc"))


@pytest.mark.parametrize(
    ("membership", "group", "limits", "limit"),
    [
        ("0::/job/42", "job/42", {"job/42/memory.max": 3 << 29}, "1.5 GiB"),
        (
            "9:name=systemd:/job\n4:cpuacct,memory:/job\n0::/job",
            "memory/job",
            {"memory/job/memory.limit_in_bytes": 64 << 20},
            "64 MiB",
        ),
        ("4:memory:/docker/abc", "memory", {}, ""),
        (
            "0::/slice/job",
            "slice/job",
            {"slice/job/memory.max": "max", "slice/memory.max": 1 << 20},
            "1 MiB",
        ),
        ("0::/slice/job", "slice/job", {"slice/job/memory.max": "max", "slice/memory.max": "max"}, ""),
        ("4:memory:/", "memory", {"memory/memory.limit_in_bytes": 9223372036854771712}, ""),
    ],
    ids=[
        "version-2", "version-1", "the-path-of-a-container-is-the-hosts", "a-parents-limit", "no-limit",
        "no-limit-in-version-1",
    ],
)  # fmt: skip
def test_an_out_of_memory_kill_in_the_agents_cgroup_is_attributed_to_the_kernel(
    tmp_path, membership, group, limits, limit
):
    machine = Machine(tmp_path, membership)
    for path, size in limits.items():
        machine.write(f"cgroup/{path}", f"{size}\n")
    machine.kills(group, 1)
    watch = machine.watch()
    assert watch.verdict(WORKER) == "", "that one was before"
    machine.kills(group, 2)
    assert watch.killed_any(WORKER) == words.failures.killed_beside(limit)
    assert watch.verdict(WORKER) == words.failures.out_of_memory(limit)
    assert watch.verdict(WORKER) == watch.killed_any(WORKER) == "", "that one has been told"


@pytest.mark.parametrize(
    ("membership", "group", "elsewhere"),
    [
        ("4:memory:/job", "memory/job", {"cgroup/memory/memory.oom_control": "oom_kill 5\n"}),
        ("0::/job", "job", {"proc/vmstat": "nr_free_pages 12345\noom_kill 4\n"}),
    ],
    ids=["the cgroup above", "the machine"],
)
def test_out_of_memory_kills_in_other_cgroups_do_not_explain_a_failure(tmp_path, membership, group, elsewhere):
    machine = Machine(tmp_path, membership)
    machine.kills(group, 0)
    watch = machine.watch()
    for path, text in elsewhere.items():
        machine.write(path, text)
    assert watch.verdict(WORKER) == ""


def test_out_of_memory_kills_in_child_cgroups_do_not_explain_a_failure(tmp_path):
    machine = Machine(tmp_path, "0::/job")
    machine.kills("job", 0)
    machine.write("cgroup/job/memory.events.local", "oom_kill 0\n")
    watch = machine.watch()
    machine.kills("job", 1)
    assert watch.verdict(WORKER) == ""
    machine.write("cgroup/job/memory.events.local", "oom_kill 1\n")
    assert watch.verdict(WORKER) == CERTAIN


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mover", [WORKER, PROGRAM])
def test_a_kill_in_the_cgroup_of_a_worker_or_of_its_program_is_attributed_to_the_kernel(tmp_path, version, mover):
    place = "4:memory:/{}".format if version == 1 else "0::/{}".format
    folder = "memory/{}".format if version == 1 else "{}".format
    machine = Machine(tmp_path, place("job"))
    machine.kills(folder("job"), 0)
    watch = machine.watch()
    machine.moves(WORKER, place("job"))
    machine.moves(mover, place("job/step"))
    machine.kills(folder("job/step"), 1)
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    machine.write(f"cgroup/{folder('job/step')}/{limit}", str(5 << 30))
    watch.look(WORKER, [PROGRAM])
    assert watch.verdict(WORKER) == "", "that kill was before"
    machine.kills(folder("job/step"), 2)
    assert watch.verdict(WORKER + 7) == "", "that worker is elsewhere"
    assert watch.killed_any(WORKER) == words.failures.killed_beside("5 GiB")
    assert watch.verdict(WORKER) == words.failures.out_of_memory("5 GiB")
    assert watch.verdict(WORKER) == watch.killed_any(WORKER) == "", "that one has been told"


def test_a_cgroup_that_is_removed_with_its_last_process_has_told_its_kills_before(tmp_path):
    machine = Machine(tmp_path, "0::/job")
    machine.moves(WORKER, "0::/step")
    machine.kills("step", 0)
    watch = machine.watch()
    watch.look(WORKER)
    machine.kills("step", 1)
    watch.exited(WORKER)
    (tmp_path / "cgroup/step/memory.events").unlink()
    assert watch.verdict(WORKER) == CERTAIN
    assert watch.verdict(WORKER) == ""


def test_a_worker_in_a_cgroup_outside_this_namespace_is_in_none_that_is_known(tmp_path):
    machine = Machine(tmp_path, "0::/")
    machine.kills("", 0)
    watch = machine.watch()
    for membership in ("0::/../step", "0::/step (deleted)", "nonsense"):
        machine.moves(WORKER, membership)
        watch.look(WORKER)
    assert watch.verdict(WORKER) == ""
    machine.kills("", 1)
    assert watch.verdict(WORKER) == CERTAIN


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "\xff\x00"])
def test_a_counter_that_cannot_be_read_counts_as_zero(tmp_path, text):
    machine = Machine(tmp_path, "0::/job", "nonsense", "")
    machine.write("cgroup/job/memory.events", text)
    assert machine.watch().verdict(WORKER) == ""
    assert OomWatch(str(tmp_path / "none"), str(tmp_path / "none")).verdict(WORKER) == ""


def test_this_machine_can_be_asked():
    assert OomWatch().verdict(WORKER) == ""
