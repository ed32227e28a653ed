"""Output of a command in a process of its own, since its handlers of signals would stay in this one."""

import subprocess
import sys

WAITS_FOR_A_SERVER = """
import time
from rdzvctl.output import Output, ReaderGone
try:
    Output({}).end_with_reader()
    while True:
        try:
            print("waits", flush=True)
            time.sleep(60)
        except OSError:  # as of a broken connection
            time.sleep(60)
except ReaderGone:
    raise SystemExit(7) from None
"""


def test_a_reader_that_is_gone_is_not_taken_for_a_broken_connection() -> None:
    process = subprocess.Popen((sys.executable, "-c", WAITS_FOR_A_SERVER), stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"waits\n"
    process.stdout.close()
    try:
        assert process.wait(30) == 7
    finally:
        process.kill()
        process.wait()
