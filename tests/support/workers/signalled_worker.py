"""Worker that writes down its process id, and ends by a signal: SIGUSR1 with exit code 3, SIGUSR2 with 0."""

import os
import signal
import sys
from pathlib import Path

signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
Path("worker.pid").write_text(str(os.getpid()))
print("trains", flush=True)
while True:
    signal.pause()
