"""Messages about a worker's end: its exit status in words, and what to do if there is no error."""

# An exit status.


def exit_code(code: int) -> str:
    return f"exit code {code}"


def killed_by(number: int, name: str) -> str:
    return f"signal {number} ({name})"


def exit_code_of_signal(code: int, number: int, name: str) -> str:
    return f"exit code {code} (128 + {number}: {name})"


def with_meaning(status: str, meaning: str) -> str:
    return f"{status}: {meaning}"


def with_broken_error_file(cause: str, problem: str) -> str:
    return f"{cause} (its error file cannot be read: {problem})"


def error_after(error: str, first: str) -> str:
    """`error`: the exception that ended a worker; `first`: the one that began the chain."""
    return f"{error}, after {first}"


OUTPUT_NOT_WRITTEN = "Python could not write its last output: a closed pipe, or a full disk"
NOT_EXECUTABLE = "the program cannot be executed: no permission, or no executable format"
PROGRAM_NOT_FOUND = "the program, or one that it calls, was not found"

STILL_EXITING = "an exception has ended its script, but the process has not exited yet"

KILLED_FROM_OUTSIDE = "killed from outside"
SEGMENTATION_FAULT = "segmentation fault"
BUS_ERROR = "bus error; often /dev/shm is full"
ABORTED = "aborted"
ARITHMETIC_ERROR = "arithmetic error in native code, such as a division by zero"
ILLEGAL_INSTRUCTION = "illegal instruction"
TERMINATED = "another process asked it to end"
INTERRUPTED = "another process interrupted it"
ALARM = "a timer that the program has set (signal.alarm) expired"
HUNG_UP = "another process or its terminal sent SIGHUP"
QUIT = "another process or its terminal sent SIGQUIT"
NOT_HANDLED = "another process sent this signal, and the program does not handle it"
BROKEN_PIPE = "wrote to a pipe whose reader has closed it"
FORBIDDEN_SYSTEM_CALL = "it made a system call that its sandbox forbids"
CPU_TIME_USED_UP = "it used up its limit on processor time"
FILE_TOO_LARGE = "a file grew beyond its size limit"


def out_of_memory(limit: str) -> str:
    """`limit`: the cgroup's limit, such as "3 GiB"; empty if there is none."""
    return "killed by the kernel: out of memory" + (f" (cgroup limit {limit})" if limit else "")


def killed_beside(limit: str) -> str:
    """`limit`: as in `out_of_memory`."""
    within = f" (cgroup limit {limit})" if limit else ""
    return f"while the workers ran, the kernel killed one of their processes for lack of memory{within}: {MORE_MEMORY}"


# In the final report, whose form is torchrun's.

FOLLOWS = "follows from another worker's end"
"""Text after the cause."""
NO_SINGLE_RANK = "the evidence points to no single rank"
"""Text in place of the rank."""
LIKE_ROOT = "the same as [0]"


def no_exception(cause: str) -> str:
    return f"{cause}, and no exception was seen"


def round_that_ended_the_run(round_: int) -> str:
    return f"{round_}, and it ended the run"


def like_reason_before(round_: int) -> str:
    return f"as before round {round_}"


def last_restarts(number: int) -> str:
    return f"the last {number}:"


def more_failures(number: int) -> str:
    return f"and {number} more"


def ended(why: str) -> str:
    return f"Ended: {why}"


def logs_of(node_id: str, folder: str) -> str:
    return f"Logs of node {node_id}: {folder}"


# Advice.

MORE_MEMORY = "give the job or container more memory, or use less: a smaller batch, fewer data loader workers"
ASK_WHO_KILLED = "look for the sender of the signal in the scheduler's events, or with dmesg on that node"
USE_FAULTHANDLER = "run with PYTHONFAULTHANDLER=1 to see where; often two native libraries are incompatible"
END_PROCESS_GROUP = (
    "threads of a library still ran when the script ended: call torch.distributed.destroy_process_group() at its end"
)
SEE_STDERR = "a native library gave up; it usually says why on stderr"
OTHER_CPU = "a library was built for a different CPU than this node's"
ASK_WHO_SIGNALLED = "a scheduler, a person or the script itself sent the signal"
SEE_ULIMIT_T = "raise the limit on processor time (ulimit -t), or save and end before it"


def error_of_thread(error: str, thread: str) -> str:
    return f"{error} (in thread {thread})"


def disk_full(folder: str) -> str:
    return f"the disk of the log files is full, and the worker's last output is lost: df -h {folder}"


def file_cannot_grow(why: str, advice: str) -> str:
    return f"a log file cannot grow ({why}), and the worker's last output is lost: {advice}"


# Error files.

NOT_A_FILE = "it is not a file"
EMPTY = "it is empty"
NOT_JSON = "it is not JSON"
NO_MESSAGE = "it has no message"


def longer_than(limit: int) -> str:
    return f"it has more than {limit} bytes"


def error_file_not_written(path: str, variable: str, why: str) -> str:
    return f"cannot write the error file {path} ({variable}): {why}"
