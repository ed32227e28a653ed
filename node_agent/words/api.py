"""Messages of `elastic_launch` and `start_processes` about a program's values, and about launches that failed.

`what` is the field that gave a value.
"""

from collections.abc import Sequence

UNGUARDED = (
    "a worker imports the script that started it, and the script would start workers again. "
    'Put the call that starts workers under `if __name__ == "__main__":`, or use start_method="fork"'
)
FORK_SERVER_ENDED = f"multiprocessing's fork server has ended: {UNGUARDED}"
NO_HEALTH_CHECK_SERVER = "health_check_server: node-agent has none; use rdzv-server's /healthz"
CHILDREN_IGNORED = (
    "this program ignores SIGCHLD, so the kernel keeps no exit codes of its workers: call "
    "signal.signal(signal.SIGCHLD, signal.SIG_DFL) first"
)
NEVER_STARTED = "the launch was interrupted before it began"
HAS_LEFT = "this node has left the run"
NO_FAILURE = "a ChildFailedError needs at least one failure"
TWO_LOGS_SPECS = "give logs_specs, or log_dir, redirects and tee, not both"
NO_PROGRAM = "entrypoint: the list is empty: name a program in it"
PROCESSES_CONTINUE = "the processes continue"

# Launches.


def signalled(pid: int, signal: str) -> str:
    return f"process {pid} got {signal}"


def stopped_before_start(name: str) -> str:
    return f"{name} was stopped before its processes were started"


def ended_by_agent(status: str) -> str:
    return f"{status}: the agent told it to end"


def value_unreadable(local_rank: int, reason: str) -> str:
    return f"cannot read the value that local rank {local_rank} returned: {reason}"


def value_not_picklable(kind: str, reason: str) -> str:
    return f"cannot pickle the value that the function returned: {kind}: {reason}"


def call_not_picklable(function: str, reason: object) -> str:
    return f"cannot send {function} and its arguments to a worker: {reason}"


def cannot_write(path: str, reason: str | None) -> str:
    return f"cannot write {path}: {reason}" if reason else f"cannot write {path}"


# Values.


def not_seconds(what: str, given: object) -> str:
    return f"{what}: expected a number of seconds, not {given!r}"


def not_seconds_above_0(what: str, given: object) -> str:
    return f"{what}: expected a number of seconds above 0, not {given!r}"


def only_for_the_program(key: str) -> str:
    return f"rdzv_configs: {key} has an effect only in the program node-agent"


def not_a_text(what: str, given: object) -> str:
    return f"{what}: expected a text, not {given!r:.80}"


def not_texts(what: str, given: object) -> str:
    return f"{what}: expected a list of texts to look for, not {given!r:.80}"


def not_a_start_method(methods: Sequence[str], given: object) -> str:
    return f"start_method: expected one of {', '.join(methods)}; not {given!r}"


def not_arguments(what: str, given: object) -> str:
    return f"{what}: expected a tuple of arguments, not {given!r:.80}"


def not_an_entrypoint(given: object) -> str:
    return f"entrypoint: expected a function, a program, or a list of a program and arguments, not {given!r:.80}"


def not_numa_options(modes: Sequence[str], given: object) -> str:
    return f"numa_options: expected torch's NumaOptions, or one of {', '.join(modes)}; not {given!r:.80}"


def log_dir_is_a_file(path: object, no_files: str) -> str:
    return f"log_dir: {path} is a file: name a folder, or {no_files} for no files"


def log_dir_not_empty(path: str) -> str:
    return f"log_dir: {path} is not empty: name another folder, or give logs_specs, which make a new folder below it"


def not_launch_config(given: object) -> str:
    return f"config: expected a LaunchConfig, not {given!r:.80}"


def not_logs_specs(given: object) -> str:
    return f"logs_specs: expected a DefaultLogsSpecs, or a class with torch's reify(), not {given!r:.80}"


def not_streams(what: str, given: object) -> str:
    return f"{what}: expected Std.NONE, Std.OUT, Std.ERR or Std.ALL, not {given!r}"


def not_a_number_of_streams(what: str, given: object) -> str:
    return f"{what}: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), not {given!r}"


# Maps from local ranks.


def not_a_local_rank(what: str, key: object) -> str:
    return f"{what}: expected a map from local ranks, not from {key!r}"


def not_a_map(what: str, kind: str) -> str:
    return f"{what}: expected a map from each local rank, not {kind}"


def not_a_map_to_texts(what: str, given: object) -> str:
    return f"{what}: expected a map from local ranks to texts, not {given!r:.80}"


def wrong_ranks(what: str, count: int, missing: Sequence[int], strange: Sequence[object]) -> str:
    ranks = f"its keys must be the local ranks 0 to {count - 1}"
    if count == 1:
        ranks = "its only key must be the local rank 0"
    elif count == 0:
        ranks = "it must be empty, because args is empty"
    wrong = [*(f"{rank} is missing" for rank in missing), *(f"{key!r} is not a local rank" for key in strange)]
    return f"{what}: {ranks}; {', '.join(wrong)}"


def not_an_environment(what: str, given: object) -> str:
    return f"{what}: expected a map from names to values, not {given!r:.80}"


def variable_not_text(what: str, name: object, value: object) -> str:
    return f"{what}: names and values must be texts, not {name!r}: {value!r:.80}"


def no_variable(what: str, name: str, value: str) -> str:
    return f"{what}: not a valid variable: {name!r}: {value!r:.80}"
