"""Messages of the agent and its fork server about workers that start warm.

The fork server loads this file by its path, in the workers' interpreter, so it imports nothing.
"""

END_BEFORE_START = "the processes that are forked for them end before the workers start"


def waiting_for_import(modules: str) -> str:
    return f"waiting for the import of {modules} before starting workers"


def start_warm(modules: str, took_s: str) -> str:
    return f"workers start warm: {modules} imported in {took_s} s"


def start_cold(why: str) -> str:
    return f"workers start cold, without --preload: {why}"


def import_died_again(modules: str) -> str:
    return f"workers start cold: the process that imports {modules} keeps dying"


def import_died(modules: str) -> str:
    return f"the process that imports {modules} died; starting another one"


def import_not_started(modules: str, why: str) -> str:
    return f"could not start a process to import {modules}: {why}"


# Reasons why no worker can be forked.


def cannot_import(module: str, error: str) -> str:
    return f"cannot import {module}: {error}"


def opens_device(module: str, device: str) -> str:
    return f"{module} opens {device} on import, and forked workers cannot share it"


def starts_threads(module: str, threads: list[str]) -> str:
    return f"{module} starts {len(threads)} threads on import ({', '.join(threads)}), and forked workers lose them"


def cannot_fork(why: str) -> str:
    return f"cannot fork a process: {why}"


IMPORTS = "it is importing the modules of --preload"
