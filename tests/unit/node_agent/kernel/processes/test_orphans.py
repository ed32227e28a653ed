"""Orphans in an agent's process, simulated by a script in a separate process: which ones it ends, and which not."""

import subprocess
import sys

import pytest

PRELUDE = """
import asyncio, os, shlex, signal, subprocess
from node_agent.kernel.processes import orphans
from node_agent.kernel.processes.orphans import Orphans, children, family
from node_agent.kernel.processes.orphans_helper import look_at
from node_agent.kernel.processes.process import CommandProcess
from tests.support import leaderless

def orphan(how="", env={}, program="sleep 1000"):
    # A process whose parent is gone.
    command = f"setsid {how} {program} >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(command, shell=True, env={**os.environ, **env}, stdout=subprocess.PIPE).stdout)

def without_main_thread(how="", env={}):
    # An orphan whose main thread has ended.
    pid = orphan(how, env, shlex.join(leaderless.COMMAND))
    leaderless.until_leaderless(pid)
    return pid

async def main():
"""


def run(*lines: str, before: str = "") -> None:
    """Run the lines in the event loop of a new process."""
    script = PRELUDE + "\n".join(f"    {line}" for line in lines)
    subprocess.run(
        (sys.executable, "-c", f"{script}\n{before}\nasyncio.run(main())"),
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


MARKED, UNMARKED = "orphan(env=ours.mark)", "orphan('env -i')"
OURS = "ours = Orphans('1234')"


@pytest.mark.parametrize("how", [MARKED, UNMARKED])
def test_an_orphan_is_ended_for_any_environment(how: str) -> None:
    run(OURS, f"pid = {how}", "assert ours.end() == 1", "assert look_at(pid) is None and not children()")


@pytest.mark.parametrize("how", ["env=ours.mark", "'env -i'"])
def test_an_orphan_whose_main_thread_has_ended_is_ended(how: str) -> None:
    run(
        OURS, f"pid = without_main_thread({how})",
        "assert ours.leftovers() == {pid} and ours.end() == 1 and look_at(pid) is None and not children()",
    )  # fmt: skip


def test_an_agent_that_adopts_orphans_ends_marked_or_known_ones_without_a_main_thread() -> None:
    run(
        OURS, "alien, known = without_main_thread('env -i'), without_main_thread('env -i')",
        "marked = without_main_thread(env=ours.mark)",
        "ours._roster = orphans.Roster({}, {known: orphans.began(known)})",
        "assert ours.end() == 2",
        "assert look_at(alien) and not look_at(marked) and not look_at(known)",
        "os.kill(alien, signal.SIGKILL)", "child.kill()",
        before=INHERITED,
    )  # fmt: skip


def test_an_agent_that_adopts_others_ends_the_orphans_of_its_workers_without_any_environment() -> None:
    run(
        OURS, "ours._adopts_others = True", "alien = orphan('env -i')",
        """worker = ('sh', '-c', "env -i setsid sh -c 'echo $$; exec sleep 1000' & wait $!")""",
        "ends, begins = os.pipe()",
        "child = CommandProcess(worker, {**os.environ, **ours.mark}, begins, 2)",
        "pid = int(os.read(ends, 99))", "child.end(9.0)",
        "assert ours.leftovers() == {pid} and ours.end() == 1 and look_at(pid) is None and look_at(alien)",
        "os.kill(alien, signal.SIGKILL)",
    )  # fmt: skip


def test_an_orphan_ends_with_its_descendants() -> None:
    tree = "setsid sh -c 'setsid sh -c \"sleep 1000 & sleep 1000 & wait\" & wait' >/dev/null 2>&1 &"
    run(
        OURS, f"subprocess.run({tree!r}, shell=True)",
        "while len(family(children())) < 4: pass",
        "pids = family(children())",
        "assert ours.end() == 4",
        "assert not any(map(look_at, pids)) and not children()",
    )  # fmt: skip


def test_children_started_between_two_looks_are_found_by_the_next_one() -> None:
    run(
        OURS, f"first, seen, late = {MARKED}, ours.leftovers, []",
        "def leftovers():",
        "    found = seen()",
        f"    if not late: late.append({UNMARKED})",
        "    return found",
        "ours.leftovers = leftovers",
        "assert ours.end() == 2 and not look_at(late[0])",
    )  # fmt: skip


INHERITED = "child = subprocess.Popen(('sleep', '1000'))"


def test_an_agent_that_has_the_children_of_a_shell_script_leaves_them_and_their_orphans_alone() -> None:
    run(
        OURS, f"alien, marked = {UNMARKED}, {MARKED}",
        "assert ours.end() == 1",
        "assert look_at(alien) and look_at(child.pid) and not look_at(marked)",
        "os.kill(alien, signal.SIGKILL)", "child.kill()",
        before=INHERITED,
    )  # fmt: skip


def test_a_known_descendant_without_the_mark_is_ended_even_without_a_subreaper() -> None:
    run(
        "worker = subprocess.Popen('env -i setsid sleep 1000 & wait', shell=True)",
        OURS, "orphans.own_children.add(worker.pid)", "ours.started([worker.pid])",
        "while not children(worker.pid): pass",
        "(daemon,) = children(worker.pid)",
        "ours._look_at = 0.0", "ours.look()",
        "worker.kill()", "worker.wait()", "ours.exited(worker.pid)",
        "assert ours.end() == 1 and not look_at(daemon) and look_at(child.pid)", "child.kill()",
        before=INHERITED,
    )  # fmt: skip


def test_an_orphan_in_a_workers_session_is_ended_even_without_a_subreaper() -> None:
    run(
        OURS, "script = 'env -i sleep 1000 >/dev/null & echo $!'",
        "worker = subprocess.Popen(script, shell=True, stdout=subprocess.PIPE, start_new_session=True)",
        "orphans.own_children.add(worker.pid)", "ours.started([worker.pid])",
        "daemon = int(worker.stdout.readline())",
        "os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)", "ours.exited(worker.pid)", "worker.wait()",
        "assert ours.end() == 1 and not look_at(daemon) and look_at(child.pid)", "child.kill()",
        before=INHERITED,
    )  # fmt: skip


def test_an_expected_orphan_is_not_signalled() -> None:
    run(
        OURS, f"expected, other = {MARKED}, {MARKED}", "ours.expects = lambda pid: pid == expected",
        "assert ours.leftovers() == {other} and ours.end() == 1 and look_at(expected)",
        "os.kill(expected, signal.SIGKILL)",
    )  # fmt: skip


def test_a_child_that_other_code_waits_for_is_not_reaped() -> None:
    run(
        OURS, "helper = subprocess.Popen(('sleep', '1000'))", "orphans.own_children.add(helper.pid)",
        "assert ours.end() == 0 and helper.poll() is None", "helper.kill()",
    )  # fmt: skip
