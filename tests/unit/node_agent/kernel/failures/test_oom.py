"""Whether the kernel killed a worker, by the counters of a simulated machine."""

import pytest

from node_agent import words
from node_agent.kernel.failures.oom import OomWatch

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
    assert watch.verdict() == "", "that one was before"
    machine.kills(group, 2)
    assert watch.killed_any == words.failures.killed_beside(limit)
    assert watch.verdict() == words.failures.out_of_memory(limit)
    assert watch.verdict() == watch.killed_any == "", "that one has been told"


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
    assert watch.verdict() == ""


def test_out_of_memory_kills_in_child_cgroups_do_not_explain_a_failure(tmp_path):
    machine = Machine(tmp_path, "0::/job")
    machine.kills("job", 0)
    machine.write("cgroup/job/memory.events.local", "oom_kill 0\n")
    watch = machine.watch()
    machine.kills("job", 1)
    assert watch.verdict() == ""
    machine.write("cgroup/job/memory.events.local", "oom_kill 1\n")
    assert watch.verdict() == CERTAIN


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "\xff\x00"])
def test_a_counter_that_cannot_be_read_counts_as_zero(tmp_path, text):
    machine = Machine(tmp_path, "0::/job", "nonsense", "")
    machine.write("cgroup/job/memory.events", text)
    assert machine.watch().verdict() == ""
    assert OomWatch(str(tmp_path / "none"), str(tmp_path / "none")).verdict() == ""


def test_this_machine_can_be_asked():
    assert OomWatch().verdict() == ""
