"""Runs another script and interrupts it: `interrupted.py SCRIPT [ARGUMENT ...]`, as INTERRUPTIONS says.

That is JSON, a list of `[text, rank, action]`. The action happens when the script first prints a line with that text as
that rank. This process or the agent that launched it gets SIGKILL (`kill worker`, `kill agent`). With `wait`, this
process waits until there is a file `go-<number of the entry>`. Each happens once; a file in the current folder
remembers it over restarts and lost nodes. `printed-<RANK>` also has what each rank prints, because a killed agent may
not have read it yet.
"""

import builtins
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

write_line = builtins.print


def print_and_see(*words: Any, **how: Any) -> None:
    write_line(*words, **how)
    line = " ".join(map(str, words))
    with open(f"printed-{os.environ['RANK']}", "a") as file:
        write_line(line, file=file)
    for number, (text, rank, action) in enumerate(json.loads(os.environ.get("INTERRUPTIONS", "[]"))):
        if text in line and str(rank) == os.environ["RANK"] and is_first(f"interruption-{number}"):
            write_line(f"interrupted: {action}", flush=True)
            carry_out(action, number)


def carry_out(action: str, number: int) -> None:
    if action == "wait":
        while not os.path.exists(f"go-{number}"):
            time.sleep(0.01)
    else:
        launcher = int(os.environ.get("LAUNCHER_PID", os.getppid()))  # see tests/support/warm_python_helper.py
        os.kill({"kill worker": os.getpid(), "kill agent": launcher}[action], signal.SIGKILL)
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
