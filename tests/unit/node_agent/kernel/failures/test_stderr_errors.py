"""The error in a process's last output."""

import re
import subprocess
import sys

import pytest

from node_agent.kernel.failures.stderr_errors import MOST_AFTER, StderrError, find_error

HEADER = "Traceback (most recent call last):"


def written_by(script: str, *flags: str) -> list[str]:
    """Return the output of Python itself on stderr."""
    done = subprocess.run([sys.executable, *flags, "-c", script], capture_output=True, text=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("script", "error", "first", "last"),
    [
        ("def train(): raise ValueError('boom')\ntrain()", "ValueError: boom", HEADER, "ValueError: boom"),
        (
            "try:\n  1 / 0\nexcept ArithmeticError as e:\n  raise RuntimeError('training failed') from e",
            "RuntimeError: training failed",
            HEADER,
            "RuntimeError: training failed",
        ),
        ("raise ValueError('boom\\nwith details\\n  and more')", "ValueError: boom", HEADER, "  and more"),
        ("raise KeyError", "KeyError", HEADER, "KeyError"),
        (
            "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])",
            "ExceptionGroup: two (2 sub-exceptions)",
            f"  + Exception Group {HEADER}",
            "    +------------------------------------",
        ),
        (
            "x = (",
            "SyntaxError: '(' was never closed",
            '  File "<string>", line 1',
            "SyntaxError: '(' was never closed",
        ),
        (
            "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()",
            "Fatal Python error: Segmentation fault",
            "Fatal Python error: Segmentation fault",
            "",
        ),
    ],
    ids=["uncaught", "chained", "several-lines", "no-message", "a-group", "a-syntax-error", "a-crash"],
)
def test_the_last_output_of_python(script, error, first, last):
    found = find_error(["step 1", "step 2", *written_by(script)])
    assert found.error == error
    assert found.traceback[0] == first
    assert found.traceback[-1].endswith(last)


IN_A_GROUP = """
import asyncio
async def step(): raise ValueError('boom')
async def nested():
    async with asyncio.TaskGroup() as group: group.create_task(step())
async def train():
    async with asyncio.TaskGroup() as group: group.create_task({task}())
asyncio.run(train())
"""


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("task", ["step", "nested"])
def test_an_exception_group_whose_exceptions_have_tracebacks_is_found(task: str, is_marked: bool) -> None:
    lines = written_by(IN_A_GROUP.format(task=task))
    written = [f"[rank1]: {line}" for line in lines] if is_marked else lines
    found = find_error(["step 1", *written, "wandb: done"])
    assert found.error == "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"
    assert found.first_error == "ValueError: boom"
    assert found.traceback[: len(lines)] == tuple(lines)
    assert found.is_uncaught == is_marked


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ("  raise RuntimeError('epoch 3 failed') from e", "RuntimeError: epoch 3 failed"),
        ("  raise RuntimeError('cannot tell the others')", "RuntimeError: cannot tell the others"),
        (
            "  try: raise RuntimeError('epoch 3 failed') from e\n  finally: open('/nowhere')",
            "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'",
        ),
    ],
    ids=["from", "while-handling", "three"],
)
@pytest.mark.parametrize("mark", ["", "[rank3]: "], ids=["plain", "marked"])
def test_the_last_exception_of_a_chain_ended_the_process_and_the_first_one_was_the_cause(second, error, mark):
    script = f"def load(): raise KeyError('shard 7')\ntry: load()\nexcept KeyError as e:\n{second}"
    found = find_error(["step 1", *(f"{mark}{line}" for line in written_by(script))])
    assert found.error == error
    assert found.first_error == "KeyError: 'shard 7'"
    assert found.traceback[0] == HEADER and found.traceback[-1] == error
    assert found.first_lines == found.traceback[: len(found.first_lines)]
    assert found.first_lines[0] == HEADER
    assert not any(error in line for line in found.first_lines)


def test_the_beginning_of_a_chain_may_be_lost():
    script = "def dig(n):\n  if not n: raise KeyError('a')\n  dig(n - 1)\ntry: dig(3)\nexcept KeyError: 1 / 0"
    lines = written_by(script)
    cut = find_error(lines[3:])
    assert (cut.error, cut.first_error) == ("ZeroDivisionError: division by zero", "KeyError: 'a'")
    assert find_error(lines[next(at for at in range(len(lines)) if "KeyError" in lines[at] and at > 5) :]).error


def test_a_librarys_output_after_an_exception_does_not_hide_it():
    lines = written_by("raise ValueError('boom')")
    more = [f"wandb: metric {number}" for number in range(300)]
    found = find_error([*lines, *more])
    assert found.error == "ValueError: boom"
    assert found.traceback == (*lines, *more[:MOST_AFTER])


def test_a_crash_with_many_threads_shows_the_stack_of_the_crashed_thread():
    script = (
        "import faulthandler, threading, time\n"
        "faulthandler.enable()\n"
        "for _ in range(9): threading.Thread(target=time.sleep, args=[60], daemon=True).start()\n"
        "faulthandler._sigsegv()"
    )
    found = find_error(written_by(script))
    assert found.error == "Fatal Python error: Segmentation fault"
    assert found.traceback[2].startswith("Current thread")
    assert len(found.traceback) < 8, "the other threads only wait"


def test_a_deep_traceback_is_recognized_without_its_beginning():
    lines = written_by("def dig(n):\n  if not n: raise ValueError('boom')\n  dig(n - 1)\ndig(30)")[-12:]
    assert find_error(lines) == StderrError("ValueError: boom", tuple(lines))


def test_the_marks_that_torch_puts_before_the_lines_are_taken_away():
    lines = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "train.py", line 7, in <module>',
        '[rank3]:     raise ValueError("boom")',
        "[rank3]: ValueError: boom",
        "[rank3]: with details",
        "terminate called without an active exception",
        "[W1101 12:00:00.0 ProcessGroupNCCL.cpp:1496] Warning: process group has NOT been destroyed",
    ]
    found = find_error(lines)
    assert found.error == "ValueError: boom"
    assert found.traceback[0] == "Traceback (most recent call last):"
    assert found.traceback[-1] == "with details", "what follows is not torch's"
    assert found.is_uncaught and not find_error([line.removeprefix("[rank3]: ") for line in lines[:4]]).is_uncaught


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("-m", "json.nosuch"), "No module named json.nosuch"),
        (("-m", "json"), "No module named json.__main__; 'json' is a package and cannot be directly executed"),
        (
            ("-m", "os.path.nosuch"),
            "Error while finding module specification for 'os.path.nosuch' (ModuleNotFoundError: ",
        ),
        (("/nosuch.py",), "can't open file '/nosuch.py': [Errno 2] No such file or directory"),
        (("/proc/self/fdinfo",), "can't find '__main__' module in '/proc/self/fdinfo'"),
    ],
)
def test_a_script_that_python_cannot_run_is_the_error(command, error):
    lines = subprocess.run([sys.executable, *command], capture_output=True, text=True).stderr.splitlines()
    found = find_error(["train: No module named x", *lines, ""])
    assert found.error.startswith(error) and not found.traceback and not found.is_uncaught
    assert not find_error([*lines, "a later line"]).error, "Python writes nothing after it"


@pytest.mark.parametrize(
    "script",
    [
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\np.parse_args()",
        "import click\n@click.command()\n@click.option('--lr', required=True)\ndef main(lr): pass\nmain()",
    ],
    ids=["argparse", "click"],
)
def test_a_command_line_that_the_script_rejects_is_the_error(script: str) -> None:
    if "click" in script:
        pytest.importorskip("click")
    lines = written_by(script)
    assert "--lr" in lines[-1] and find_error(["step 1", *lines]).error == lines[-1]
    assert not find_error([*lines, "the script continues"]).error
    assert not find_error([lines[-1]]).error, "a line without the usage may be about anything"


def test_a_timer_of_the_script_that_ends_it_is_the_error() -> None:
    script = "import faulthandler, time\nfaulthandler.dump_traceback_later(0.1, exit=True)\ntime.sleep(60)"
    lines = written_by(script)
    found = find_error(["step 1", *lines], by_exception=True)
    assert re.fullmatch(r"Timeout \(0:00:00\.1\d*\)!", found.error) and found.traceback == tuple(lines)
    assert not find_error([*lines, "step 2"], by_exception=True).error, "the timer only wrote the stacks"
    assert not find_error(lines).error, "another exit code than the timer's"


def test_a_program_that_writes_such_a_line_itself_has_not_been_refused():
    assert not find_error(["my.loader: No module named apex"]).error


def test_an_uncaught_cxx_exception():
    lines = [
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory",
    ]
    assert find_error(lines) == StderrError(
        "c10::Error: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory", tuple(lines)
    )
    assert find_error(lines[:1]).error == "c10::Error"


@pytest.mark.parametrize("steps", [0, 40])
def test_an_uncaught_cxx_exception_that_aborts_the_process_is_not_hidden_by_an_exception_that_was_logged(steps):
    caught = written_by(CAUGHT.format(log="logging.exception('no mirror')"))
    lines = [*caught, *(f"step {number}" for number in range(steps)), TERMINATED, "  what():  CUDA error: unspecified"]
    assert find_error(lines, "SIGABRT").error == "c10::Error: CUDA error: unspecified"
    fatal = "Fatal Python error: Aborted"
    assert find_error([*lines, fatal, *DUMP], "SIGABRT").error == fatal
    marked = [f"[rank3]: {line}" for line in RAISED]
    for number in (1, 12, 50):  # the exception had ended the script, and its exit handlers write
        assert find_error([*marked, *["bye"] * number, TERMINATED], "SIGABRT").error == RAISED[-1], (
            "it ended the script"
        )


UNFINISHED = ["  0%|     | 0/10 [00:00<?, ?it/s]\r 10%|5    | 1/10", "loading ", "epoch 1: ", "step 7 of 9"]


@pytest.mark.parametrize("before", UNFINISHED)
@pytest.mark.parametrize("mark", ["", "[rank3]: "])
@pytest.mark.parametrize(
    ("script", "error", "thread"),
    [
        ("raise ValueError('boom')", "ValueError: boom", ""),
        (
            "import threading; threading.Thread(target=lambda: 1 / 0, name='loader').start()",
            "ZeroDivisionError: division by zero",
            "loader",
        ),
        (
            "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()",
            "Fatal Python error: Segmentation fault",
            "",
        ),
        ("raise ExceptionGroup('two', [ValueError('a')])", "ExceptionGroup: two (1 sub-exception)", ""),
    ],
    ids=["an-exception", "of-a-thread", "a-crash", "a-group"],
)
def test_an_error_after_a_progress_bar_is_found(before: str, mark: str, script: str, error: str, thread: str) -> None:
    """Python does not begin a new line for an error if the program has not ended its last one."""
    first, *others = [f"{mark}{line}" for line in written_by(script)]
    found = find_error(["step 1", f"{before}{first}", *others])
    assert (found.error, found.thread) == (error, thread)
    assert found.traceback == find_error(["step 1", first, *others]).traceback


def test_a_cxx_exception_after_a_progress_bar_is_found() -> None:
    lines = [" 45%|####    | 45/100terminate called after throwing an instance of 'c10::Error'", "  what():  no memory"]
    assert find_error(["step 1", *lines]).error == "c10::Error: no memory"


CRASH = "Fatal Python error: Segmentation fault"
DUMP = ["", "Current thread 0x00007f00 (most recent call first):", '  File "train.py", line 7 in step', ""]
RAISED = [HEADER, '  File "train.py", line 9, in <module>', "ValueError: learning rate must be positive"]
TERMINATED = "terminate called after throwing an instance of 'c10::Error'"


@pytest.mark.parametrize(
    ("lines", "signal", "error"),
    [
        ([f"WARNING evaluation ended: {CRASH}", *RAISED], "", RAISED[-1]),
        ([f"WARNING evaluation ended: {CRASH}", *RAISED], "SIGABRT", RAISED[-1]),
        ([f"WARNING evaluation ended: {CRASH}", *RAISED], "SIGSEGV", RAISED[-1]),
        ([f"[loader 3] {CRASH}", *(f"[loader 3] {line}" for line in DUMP), *RAISED], "", RAISED[-1]),
        ([f"loading {CRASH}", *DUMP, *RAISED], "", RAISED[-1]),
        ([f"loading {CRASH}", *DUMP, "loading " + RAISED[0], *RAISED[1:]], "", RAISED[-1]),
        ([f"WARNING evaluation ended: {CRASH}", "step 1"], "", ""),
        ([f"WARNING evaluation ended: {CRASH}", "step 1", "step 2", "step 3", *DUMP], "", ""),
        ([f"loading {CRASH}", *DUMP, *RAISED], "SIGSEGV", CRASH),
        ([*RAISED, f"loading {CRASH}", *DUMP], "", CRASH),
        ([f"loading {CRASH}", "step 1"], "SIGSEGV", CRASH),
        ([f"WARNING evaluation ended: {TERMINATED}", "step 1"], "", ""),
        ([f"WARNING evaluation ended: {TERMINATED}", *RAISED], "", RAISED[-1]),
        ([f"loading {TERMINATED}", "step 1"], "SIGABRT", "c10::Error"),
        ([f"loading {TERMINATED}", "  what():  no memory"], "", "c10::Error: no memory"),
    ],
)
def test_a_crash_that_a_log_line_only_quotes_is_not_the_error(lines: list[str], signal: str, error: str) -> None:
    """A crash after other text is this process's own only if its signal, its stack or no later traceback shows it."""
    assert find_error(lines, signal).error == error


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["the child wrote 'Fatal Python error: Aborted'"],
        ["the log says: Fatal Python error: Aborted, as yesterday"],
        ["step 1: Traceback (most recent call last):"],
        ["step 1", "step 2"],
        ["Traceback (most recent call last):"],
        ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>'],
        ["where am I?", '  File "train.py", line 7, in <module>', "    here()", "going on"],
        ["", "  ", "\t"],
    ],
)
def test_without_an_error_in_the_output_no_error_is_reported(lines):
    assert find_error(lines) == StderrError()


def test_only_an_exception_that_ended_a_thread_names_the_thread() -> None:
    load = "import threading, _thread, sys\ndef load(): raise OSError(5, 'lost')\n"
    is_written = (  # a thread of `_thread` has no `join`
        "hook, done = sys.unraisablehook, threading.Event()\n"
        "def write(*args): hook(*args); done.set()\n"
        "sys.unraisablehook = write\n"
    )
    for start, thread in (
        ("t = threading.Thread(target=load); t.start(); t.join(); print('step 8')", "Thread-1 (load)"),
        (is_written + "_thread.start_new_thread(load, ()); done.wait()", "<function load at"),
        ("print('Exception in a thread', file=sys.stderr); load()", ""),
    ):
        found = find_error(written_by(load + start))
        assert (found.error, found.is_uncaught) == ("OSError: [Errno 5] lost", False)
        assert found.thread.startswith(thread) and bool(found.thread) is bool(thread)


def test_a_chain_of_exceptions_of_a_thread_names_the_thread() -> None:
    script = "import threading\ndef load():\n  try: {}[1]\n  except KeyError as e: raise OSError(5, 'lost') from e\n"
    found = find_error(written_by(script + "threading.Thread(target=load, name='loader').start()"))
    assert (found.error, found.first_error, found.thread) == ("OSError: [Errno 5] lost", "KeyError: 1", "loader")


FAILS_FIRST = "ValueError: boom"
CLEANUPS = {
    "an object that is deleted": "class A:\n  def __del__(self): raise OSError('late')\na = A()",
    "an exit handler": "import atexit\n@atexit.register\ndef flush(): raise OSError('late')",
    "a chain in an exit handler": (
        "import atexit\n@atexit.register\ndef flush():\n"
        "  try: {}[1]\n  except KeyError as e: raise OSError('late') from e"
    ),
    "a log record": "import atexit, logging\natexit.register(logging.warning, '%d', 'x')",
}
AFTER_THE_MAIN_THREAD = """
import {module}, sys
hook = sys.excepthook
def after(*raised):
  hook(*raised)
  {fail}
sys.excepthook = after
def load(): raise OSError('late')
async def step(): load()
async def train():
  task = asyncio.create_task(step())
  await asyncio.sleep(0)
"""
OTHERS = {
    name: AFTER_THE_MAIN_THREAD.format(module=module, fail=fail)
    for name, module, fail in (
        ("a thread", "threading", "threading.Thread(target=load).start()"),
        ("a child", "multiprocessing", "multiprocessing.get_context('fork').Process(target=load).start()"),
        ("a task", "asyncio", "asyncio.run(train())"),
    )
}


def with_own_marked(lines: list[str]) -> list[str]:
    """Mark the lines of the uncaught exception as torch does."""
    end = lines.index(FAILS_FIRST) + 1
    return [*(f"[rank3]: {line}" for line in lines[:end]), *lines[end:]]


@pytest.mark.parametrize("prepare", [*CLEANUPS.values(), *OTHERS.values()], ids=[*CLEANUPS, *OTHERS])
def test_an_error_while_python_exits_does_not_hide_the_one_that_ended_the_script(prepare: str) -> None:
    lines = written_by(f"{prepare}\nraise ValueError('boom')")
    assert lines.index(FAILS_FIRST) < len(lines) - 2, "another traceback follows"
    found = find_error(["step 1", *lines], by_exception=True)
    assert (found.error, found.thread) == (FAILS_FIRST, "")
    assert not any("late" in line for line in found.traceback)
    marked = find_error(["step 1", *with_own_marked(lines)])
    assert (marked.error, marked.traceback[-1], marked.is_uncaught) == (FAILS_FIRST, FAILS_FIRST, True)


@pytest.mark.parametrize("cleanup", CLEANUPS.values(), ids=CLEANUPS)
def test_an_exception_that_python_has_caught_itself_is_no_error(cleanup: str) -> None:
    assert find_error(written_by(f"{cleanup}\nraise SystemExit(4)")) == StderrError()


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_error_of_a_thread_a_task_or_a_child_counts_if_the_one_before_may_have_been_caught(other: str) -> None:
    lines = written_by(f"{other}\nraise ValueError('boom')")
    assert find_error(lines).error == "OSError: late"
    assert find_error(lines[lines.index(FAILS_FIRST) + 1 :], by_exception=True).error == "OSError: late"


CAUGHT = """
import asyncio, logging, multiprocessing, sys, threading, traceback
def connect():
  try: raise ConnectionError("mirror 1 down")
  except ConnectionError: {log}
def load(): raise OSError("late")
async def step(): load()
async def train():
  task = asyncio.create_task(step())
  await asyncio.wait([task])
connect()
"""
AND_THEN = {
    "a thread dies": "thread = threading.Thread(target=load); thread.start(); thread.join()",
    "a child dies": "c = multiprocessing.get_context('fork').Process(target=load); c.start(); c.join()",
    "a child with a name dies": "c = multiprocessing.get_context('fork').Process(None, load, 'x'); c.start(); c.join()",
    "a task dies": "asyncio.run(train())",
    "the script says which process failed": (
        "try: load()\nexcept OSError: print('Process 0 failed:', file=sys.stderr); traceback.print_exc()"
    ),
}


@pytest.mark.parametrize("fails", AND_THEN.values(), ids=AND_THEN)
@pytest.mark.parametrize("log", ["logging.exception('no mirror')", "traceback.print_exc()"])
def test_an_exception_that_the_script_has_logged_does_not_hide_the_error_that_made_it_exit(log, fails) -> None:
    """A script that calls `sys.exit(1)` has the exit code of an uncaught exception."""
    lines = written_by(f"{CAUGHT.format(log=log)}{fails}\nsys.exit(1)")
    assert "ConnectionError: mirror 1 down" in lines
    assert find_error(["step 1", *lines], by_exception=True).error == "OSError: late"
    at_top = CAUGHT.format(log=log).replace("  try", "try").replace("  except", "except").replace("def connect():", "")
    lines = written_by(f"{at_top.replace('connect()', 'print(1, file=sys.stderr)')}{fails}\nsys.exit(1)")
    is_at_top = fails == AND_THEN["the script says which process failed"]
    error = "OSError: late" if is_at_top else "ConnectionError: mirror 1 down"
    assert find_error(lines, by_exception=True).error == error, "what leaves the script has most often ended it"


DIES = """
import atexit, sys, threading, traceback
def die():
  threading.main_thread().join()
  {first}
  raise OSError("late")
def main(): {body}
threading.Thread(target=die).start()
{run}
"""
ENDS = {
    "a CUDA error": ("pass", "raise RuntimeError('CUDA error: device-side assert\\nCUDA kernel errors')", "main()"),
    "a validation error": (
        "pass",
        "raise ValueError('2 validation errors for Config\\nlr\\n  x\\nwd\\n  y')",
        "main()",
    ),
    "a thread logs, then dies": ("print('bye', file=sys.stderr)", "raise ValueError('boom')", "main()"),
    "a thread logs a lot": ("print('bye\\n' * 40, file=sys.stderr)", "raise ValueError('boom')", "main()"),
    "the script says that it exits": (
        "pass",
        "raise ValueError('boom')",
        "try: main()\nexcept Exception: traceback.print_exc(); print('exiting', file=sys.stderr); sys.exit(1)",
    ),
}


@pytest.mark.parametrize(("first", "body", "run"), ENDS.values(), ids=ENDS)
def test_what_is_written_after_the_exception_that_ended_the_script_does_not_hide_it(first, body, run) -> None:
    lines = written_by(DIES.format(first=first, body=body, run=run))
    assert lines[-1] == "OSError: late"
    own = next(line for line in lines if line.startswith(("RuntimeError", "ValueError")))
    found = find_error(["step 1", *lines], by_exception=True)
    assert (found.error, found.thread) == (own, "")


@pytest.mark.parametrize("cleanup", ["wandb: Waiting for files", "closing"])
def test_what_an_exit_handler_or_a_deleted_object_writes_does_not_hide_the_error_before(cleanup: str) -> None:
    late = written_by("import threading\ndef load(): raise OSError('late')\nthreading.Thread(target=load).start()")
    assert find_error([*RAISED, cleanup, *late], by_exception=True).error == RAISED[-1]


def test_a_peer_that_a_script_has_logged_as_lost_does_not_hide_the_error_of_its_thread() -> None:
    fails = AND_THEN["a thread dies"].replace("load", "int, args=['x']", 1)
    found = find_error(
        written_by(f"{CAUGHT.format(log='traceback.print_exc()')}{fails}\nsys.exit(1)"), by_exception=True
    )
    assert found.error.startswith("ValueError") and found.thread == "Thread-1 (int)"


def test_torch_s_mark_tells_that_an_exception_has_ended_the_script_wherever_it_was_raised() -> None:
    lines = ["step 1[rank3]: " + HEADER, '[rank3]:   File "a.py", line 1, in run', f"[rank3]: {FAILS_FIRST}", "bye"]
    later = written_by(CAUGHT.format(log="pass") + AND_THEN["a thread dies"])
    assert find_error([*lines, *later]).error == FAILS_FIRST


def drawn_by_rich(script: str) -> list[str]:
    return written_by(f"from rich.traceback import install; install(show_locals=True)\n{script}")


def test_a_traceback_that_rich_has_drawn_is_found() -> None:
    raised = drawn_by_rich("def load(): raise ValueError('boom\\nwith details')\nload()")
    found = find_error(["step 1", *raised])
    assert (found.error, found.first_error, found.is_uncaught) == ("ValueError: boom", "", False)
    assert found.traceback == tuple(raised[: len(found.traceback)]) and found.traceback[-1] == found.error
    assert find_error([f"[rank3]: {line}" for line in raised]).is_uncaught
    assert find_error([*raised, *written_by("raise KeyError('b')")]).error == "KeyError: 'b'"
    assert find_error([*written_by("raise KeyError('b')"), *raised]).error == "ValueError: boom"
    assert find_error(raised[: raised.index("ValueError: boom")]) == StderrError()


def test_the_first_exception_of_a_chain_that_rich_has_drawn_is_found() -> None:
    lines = drawn_by_rich("try: {}[7]\nexcept KeyError as e: raise RuntimeError('failed') from e")
    found = find_error(["step 1", *lines])
    assert (found.error, found.first_error) == ("RuntimeError: failed", "KeyError: 7")
    assert found.first_lines == found.traceback[: len(found.first_lines)] and found.first_lines[-1] == "KeyError: 7"


@pytest.mark.parametrize(
    "prints",
    ["traceback.print_stack()", "logging.warning('closing', stack_info=True)", "faulthandler.dump_traceback()"],
    ids=["traceback", "logging", "faulthandler"],
)
def test_a_stack_that_is_printed_after_an_exception_does_not_hide_it(prints: str) -> None:
    imports = "import atexit, faulthandler, logging, traceback"
    lines = written_by(f"{imports}\natexit.register(lambda: {prints})\nraise ValueError('boom')")
    for after in ((), ("wandb is done",)):
        found = find_error(["step 1", *lines, *after])
        assert found.error == FAILS_FIRST and found.traceback[0] == HEADER
        assert find_error([*with_own_marked(lines), *after]).is_uncaught


@pytest.mark.parametrize("message", [(), ("  left over: 1", "[rank3]: a quoted line") * 20], ids=["short", "long"])
def test_an_exception_that_torch_has_marked_has_not_ended_a_script_that_continues(message: tuple[str, ...]) -> None:
    """A child of it has ended, which writes to the same stderr."""
    marked = [*with_own_marked(written_by("raise ValueError('boom')")), *(f"[rank3]: {line}" for line in message)]
    assert find_error([*marked, *["step"] * (MOST_AFTER - 1)]).is_uncaught
    continued = find_error([*marked, *["step"] * MOST_AFTER])
    assert (continued.error, continued.is_uncaught) == (FAILS_FIRST, False)
    late = written_by("import threading\ndef load(): raise OSError('late')\nthreading.Thread(target=load).start()")
    assert find_error([*marked, *late]).error == FAILS_FIRST
    assert find_error([*marked, *["step"] * MOST_AFTER, *late]).error == "OSError: late"
    exits = [*marked, *["tracker: step"] * 50, *late]
    for found in (find_error(exits, is_recent=True), find_error(exits, by_exception=True)):
        assert (found.error, found.is_uncaught) == (FAILS_FIRST, True), "exit handlers have written the lines"


def test_a_line_of_another_thread_between_the_frames_of_a_traceback_does_not_hide_its_error() -> None:
    caught, lines = written_by("raise KeyError('b')"), written_by("def load(): raise ValueError('boom')\nload()")
    for between in range(1, len(lines) - 1):
        assert find_error([*caught, *lines[:between], "step 5", *lines[between:]]).error == FAILS_FIRST


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            "inductor raised:\\nCppCompileError: no compiler\\n\\nSet TORCH_LOGS",
            "inductor raised: CppCompileError: no compiler",
        ),
        ("\\n\\n  the batch is bad", "the batch is bad"),
        ("\\n=====\\n/train.py FAILED\\n-----", "/train.py FAILED"),
        ("boom:", "boom:"),
    ],
)
def test_a_message_that_begins_on_a_later_line_is_part_of_the_error(message: str, error: str) -> None:
    lines = written_by(f"raise ValueError('{message}')")
    assert find_error(lines).error == f"ValueError: {error}"
    marked = [f"[rank3]: {line}" for line in lines]
    assert find_error([*marked, "wandb is done"]).error == f"ValueError: {error}"


def test_an_unmarked_line_of_another_program_is_not_part_of_a_message_that_ends_with_a_colon() -> None:
    lines = written_by("raise RuntimeError('cannot reach the loader:')")
    for between in ((), ("",)):
        assert find_error([*lines, *between, "wandb: Waiting for files"]).error == lines[-1]
    marked = [f"[rank3]: {line}" for line in [*lines, "it is busy"]]
    assert find_error([*marked, "wandb: Waiting for files"]).error == f"{lines[-1]} it is busy"
    assert find_error([*lines, "  it is busy"]).error == f"{lines[-1]} it is busy"


@pytest.mark.parametrize(
    "line",
    [
        "python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av))' failed.",
        "double free or corruption (!prev)",
        "free(): invalid pointer",
        "malloc(): corrupted top size",
        "corrupted size vs. prev_size",
        "*** stack smashing detected ***: terminated",
        "Fatal glibc error: pthread_mutex_lock.c:94 (___pthread_mutex_lock): assertion failed",
        "terminate called without an active exception",
    ],
)
def test_what_the_c_library_writes_before_an_abort_is_the_error(line: str) -> None:
    assert find_error(["step 1", line, "wandb is done"], "SIGABRT").error == line
    assert find_error(["step 1", line, "wandb is done"]) == StderrError(), "the process has not aborted"
    assert find_error([*RAISED, line], "SIGABRT").error == RAISED[-1]
    assert find_error([*RAISED, "with details", line], "SIGABRT").error == RAISED[-1]
    steps = [f"step {number}" for number in range(MOST_AFTER)]
    continued = find_error([*RAISED, *steps, line], "SIGABRT").error
    if "without an active exception" in line:
        assert continued == RAISED[-1], "the line has no reason of its own"
    else:
        assert continued == line, "the script has continued"
    late = written_by("import threading\ndef load(): raise OSError('late')\nthreading.Thread(target=load).start()")
    assert find_error([*RAISED, "with details", *late, line], "SIGABRT").error == RAISED[-1]
    caught = written_by(CAUGHT.format(log="traceback.print_exc()"))
    assert find_error([*caught, line], "SIGABRT").error == line
    assert find_error([*caught, line]).error == "ConnectionError: mirror 1 down"
    assert find_error([line, *caught], "SIGABRT").error == "ConnectionError: mirror 1 down"
