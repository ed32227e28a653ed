"""Tracing together with forks."""

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk")

FORKS_WHILE_IT_STARTS = """
import os, subprocess, sys, time
from rdzv_protocol.tracing import SpanExport

def wait():
    while not hasattr(sys.modules.get("concurrent.futures.thread"), "ThreadPoolExecutor"):
        time.sleep(0.001)

os.register_at_fork(before=wait)
spans = SpanExport("program", {}, lambda line: print(line, file=sys.stderr))
subprocess.run(["true"], preexec_fn=lambda: None, check=True)
spans.close()
"""


def test_a_fork_during_the_sdk_import_releases_only_its_own_locks():
    """A module that registers locks for forks would do so if another thread imported it between a fork's two halves."""
    command = [sys.executable, "-c", FORKS_WHILE_IT_STARTS]
    done = subprocess.run(command, env={"OTEL_TRACES_EXPORTER": "none"}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
