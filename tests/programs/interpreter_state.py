"""Prints, as one line of JSON, all that a script sees of its interpreter, and then follows its orders."""

import atexit
import gc
import json
import os
import signal
import sys
import threading

OURS = ("rdzv_protocol", "fork_server_helper")
SOURCE = __loader__.__class__.__name__ if __loader__ else None


def state() -> dict:
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "cwd": os.getcwd(),
        "flags": str(sys.flags),
        "main": {name: getattr(main, name, None) for name in ("__name__", "__file__", "__cached__", "__package__")},
        "globals are __main__'s": globals() is vars(main),
        "spec": main.__spec__ and main.__spec__.name,
        "loader": SOURCE,
        "builtins": __builtins__ is sys.modules["builtins"],
        "environment": dict(os.environ),
        "ours": sorted(name for name in sys.modules if "node_agent" in name or name in OURS),
        "leads a session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
        "signals": {name.name: str(signal.getsignal(name)) for name in signal.Signals},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": [thread.name for thread in threading.enumerate()],
        "is main thread": threading.current_thread() is threading.main_thread(),
        "native id": threading.get_native_id() == os.getpid(),
        "streams": [(stream.fileno(), stream.name, stream.encoding, stream.write_through, stream.isatty())
                    for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "gc": (gc.isenabled(), gc.get_threshold()),
    }  # fmt: skip


def obey(order: str) -> None:
    atexit.register(print, "atexit ran")
    threading.Thread(target=print, args=("a thread was waited for",)).start()
    if order == "raise":
        raise ValueError("boom")
    if order == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if order == "text":
        sys.exit("said at the end")
    sys.exit(int(order))


if __name__ == "__main__":
    print(json.dumps(state()))
    obey(sys.argv[1])
