"""On SIGRTMIN the process reports its garbage, and frees it. A server finds this file by `PYTHONPATH`.

A server itself collects nothing until it has grown, and leaves this signal alone.
"""

import gc
import json
import signal
from collections import Counter


def _report(*_: object) -> None:
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(_name(each) for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    print("garbage: " + json.dumps(found), flush=True)


def _name(garbage: object) -> str:
    return f"{type(garbage).__qualname__} {getattr(garbage, '__qualname__', '')}".strip()


signal.signal(signal.SIGRTMIN, _report)
