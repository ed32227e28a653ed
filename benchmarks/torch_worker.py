"""Worker that imports torch before it reports its first line. Argument: the socket for that."""

import torch  # noqa: F401 I001 - what takes its time
import runpy
import os

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py"))
