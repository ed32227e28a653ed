"""Messages about missing evidence of a hang.

The program that examines the workers loads this file too, so it imports nothing of this package.
"""

NOT_ALL_IN_TIME = "could not examine every process in time"


def not_all_within(limit_s: float) -> str:
    return f"could not examine every process within {limit_s:.1f} s"


def not_started(why: str) -> str:
    return f"could not start a process to examine the workers: {why}"


def rank_not_in_time(rank: int) -> str:
    return f"could not examine rank {rank} in time"


def rank_failed(rank: int, error: str) -> str:
    return f"rank {rank}: {error}"


def files_missing(path: str, why: str) -> str:
    return f"could not write the files of the evidence: {path}: {why}"


# Stacks.

NO_PY_SPY = "py-spy is not installed beside the agent: pip install '.[hang]' in a checkout of rdzv-server"
PY_SPY_TOO_SLOW = "py-spy did not finish in time"
NO_THREAD = "found no thread"
NO_MAIN_THREAD = "py-spy found no main thread"
NO_STACK_OF_MAIN_THREAD = "the stack of the main thread is missing"
SIGNAL_NOT_CAUGHT = "the worker no longer handles the signal that asks for its stacks"
SIGNAL_NOT_ANSWERED = "the worker did not write its stacks in time after the signal"


def no_stack(rank: int, why: list[str]) -> str:
    return f"rank {rank}: no Python stack: {'; '.join(why)}"


def py_spy_failed(why: str) -> str:
    return f"py-spy: {why}"


def worker_server_answers(answer: str) -> str:
    return f"torch's worker server answered {answer!r}"


# torch's flight recorder.


def nothing_came(path: str) -> str:
    return f"the worker wrote nothing to {path}"


def analysis_too_slow(folder: str) -> str:
    return f"torchfrtrace did not finish in time; the dumps are in {folder}"


def analysis_failed(error: str) -> str:
    return f"torchfrtrace: {error}"


# NCCL's RAS.

NO_PROCESS_IN_TIME = "no process answered in time"


def ras_failed(why: str) -> str:
    return f"NCCL's RAS: {why}"


def ras_answers(address: str, answer: str) -> str:
    return f"{address} answered {answer!r}"


def ras_refuses_limit(answer: str) -> str:
    return f"it rejected the time limit: {answer!r}"
