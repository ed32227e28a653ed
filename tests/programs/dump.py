"""Write what a worker finds when it starts: `dump.py FOLDER [ANYTHING ...]` makes FOLDER/<restarts>-<rank>.json.

With FAIL_ONCE in the environment it fails in the round without restarts. It does not use torch, only what the launcher
made.
"""

import ctypes
import json
import os
import resource
import stat
import sys

PR_GET_PDEATHSIG = 2
LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def main() -> None:
    folder = next(argument for argument in sys.argv[1:] if not argument.startswith("-"))
    restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    found = {"environment": dict(os.environ), "python": python(), "process": process()}
    with open(f"{folder}/{restarts}-{rank}.json", "w") as file:
        json.dump(found, file)
    if "FAIL_ONCE" in os.environ and restarts == "0":
        sys.exit(3)


def python() -> dict[str, object]:
    """Return the interpreter and the script as they see themselves."""
    return {
        "argv": sys.argv,
        "command": sys.orig_argv,
        "executable": sys.executable,
        "flags": str(sys.flags),
        "path": sys.path,
        "name": __name__,
        "file": __file__,
        "spec": getattr(__spec__, "name", None),
        "unbuffered": [sys.stdout.write_through, sys.stderr.write_through],
    }


def process() -> dict[str, object]:
    """Return the kernel's facts about the process."""
    return {
        "cwd": os.getcwd(),
        "umask": status("Umask"),
        "blocked signals": status("SigBlk"),
        "ignored signals": status("SigIgn"),
        "no new privileges": status("NoNewPrivs"),
        "leads its session": os.getsid(0) == os.getpid(),
        "leads its group": os.getpgrp() == os.getpid(),
        "death signal": death_signal(),
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "stdin": descriptor(0),
        "stdout": descriptor(1),
        "stderr": descriptor(2),
        "other descriptors": [descriptor(number) for number in range(3, 256) if is_open(number)],
        "timer file is a pipe": is_pipe(os.environ.get("TORCHELASTIC_TIMER_FILE", "")),
        "folder of the error file is there": os.path.isdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])),
    }


def status(field: str) -> str:
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file).get(field, "")


def death_signal() -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


def descriptor(number: int) -> str:
    """Return the kind of the file, and whether reading or writing it may block."""
    if not is_open(number):
        return "closed"
    mode = os.fstat(number).st_mode
    kind = next((name for name, is_it in KINDS.items() if is_it(mode)), "other")
    return f"{kind}, {'blocking' if os.get_blocking(number) else 'non-blocking'}"


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


KINDS = {"pipe": stat.S_ISFIFO, "file": stat.S_ISREG, "device": stat.S_ISCHR, "socket": stat.S_ISSOCK}


def is_pipe(path: str) -> bool:
    return os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)


if __name__ == "__main__":
    main()
