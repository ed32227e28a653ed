"""Processes of a measurement."""

import subprocess

from benchmarks.stage import Stage
from tests.support.process_info import is_running


def test_a_measurement_ends_only_its_own_processes_and_their_orphans():
    """Tests of other modules may share this process, and so do the servers that they have started."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        with Stage() as stage:
            program = stage.start(["sh", "-c", "(setsid sleep 600 & echo $!); exec sleep 600"])
            while not (written := program.text()).endswith("\n"):
                pass
        assert not is_running(program.pid)
        assert not is_running(int(written))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
