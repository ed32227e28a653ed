"""Worker that writes its process id to a file, and ends on a signal: with exit code 3 on SIGUSR1, 0 on SIGUSR2."""

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
