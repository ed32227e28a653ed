"""Another script, interrupted on its way: `interrupted.py SCRIPT [ARGUMENT ...]`, and what happens in INTERRUPTIONS.

That is JSON, a list of `[text, rank, deed]`. When the script first prints a line with that text as that rank, this
process or its parent, the agent, gets SIGKILL (`kill worker`, `kill agent`), or it does nothing any more until somebody
ends it (`wait`). Each happens once, which a file in the current folder remembers, over restarts and lost nodes.
"""

import builtins
import json
import os
import runpy
import signal
import sys
from typing import Any

DEEDS = {
    "kill worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill agent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "wait": signal.pause,
}
write_line = builtins.print


def print_and_see(*words: Any, **how: Any) -> None:
    write_line(*words, **how)
    line = " ".join(map(str, words))
    for number, (text, rank, deed) in enumerate(json.loads(os.environ.get("INTERRUPTIONS", "[]"))):
        if text in line and str(rank) == os.environ["RANK"] and is_first(f"interruption-{number}"):
            write_line(f"interrupted: {deed}", flush=True)
            DEEDS[deed]()
            signal.pause()


def is_first(name: str) -> bool:
    try:
        with open(name, "x"):
            return True
    except FileExistsError:
        return False


if __name__ == "__main__":
    builtins.print = print_and_see
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
