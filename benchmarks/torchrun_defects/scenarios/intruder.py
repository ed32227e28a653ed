"""A stranger to the run: somebody who reaches its port and has no credentials."""

import base64
import binascii
import http.client
import os
import pickle
import pickletools
import subprocess
import sys
from itertools import pairwise

from rdzv_protocol import paths

from benchmarks.torchrun_defects.launchers import ADDRESS, RUN_ID, Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import START_S, Stage

TOKEN = "the-secret-of-the-run"
NOT_A_MESSAGE = pickle.dumps({"run_id": RUN_ID})
READ_KEY = """
import datetime, sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=20))
state = store.get(sys.argv[3])
store.set("written by a stranger", "harmless")
sys.stdout.buffer.write(state)
"""
"""All that it takes: a client of torch's own store, and the name of the run. The state itself is left alone."""


def observe(stage: Stage, launcher: Launcher) -> Observation:
    token_file = os.path.join(stage.path, "token")
    with open(token_file, "w", encoding="ascii") as file:
        file.write(TOKEN)
    run = Run(stage, launcher, nnodes="2", token_file=token_file)
    run.form("ab")
    kept_out, saw = (_knock if launcher.is_ours else _read_state)(run.endpoint.port)
    well, ended = run.finish("ab")
    undisturbed = len(stage.heard("started")) == 2
    return Observation(kept_out and well and undisturbed, f"{saw}; the run is {'un' * undisturbed}disturbed, {ended}")


def _read_state(port: int) -> tuple[bool, str]:
    """Read the rendezvous state, and take the pickle apart without loading it."""
    key = f"torch.rendezvous.{RUN_ID}"
    command = [sys.executable, "-c", READ_KEY, ADDRESS, str(port), key]
    reader = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=START_S, check=False)
    if reader.returncode != 0:
        return True, f"a stranger could not read `{key}`"
    classes = _classes_of_pickle(reader.stdout)
    held = f"a pickle of `{', '.join(classes)}`" if classes else "no pickle"
    return False, f"a stranger read `{key}`, {held}, and wrote a key of its own"


def _classes_of_pickle(value: bytes) -> list[str]:
    """Of torch's classes, those that a pickle would load; empty if it is none."""
    try:
        operations = list(pickletools.genops(base64.b64decode(value, validate=True)))
    except (binascii.Error, ValueError):
        return []
    texts = [argument for _, argument, _ in operations if isinstance(argument, str)]
    return sorted({name for module, name in pairwise(texts) if module.startswith("torch.distributed.elastic.")})


def _knock(port: int) -> tuple[bool, str]:
    """Ask, and try to join, without the token; then send a pickle with it."""
    with_token = {"Authorization": f"Bearer {TOKEN}"}
    tried = {
        "status without a token": (_answer(port, "GET", paths.STATUS, b"", {}), 401),
        "a join without one": (_answer(port, "POST", paths.JOIN, NOT_A_MESSAGE, {}), 401),
        "a pickle with one": (_answer(port, "POST", paths.JOIN, NOT_A_MESSAGE, with_token), 400),
    }
    saw = "a stranger is refused: " + ", ".join(f"{name} {status}" for name, (status, _) in tried.items())
    return all(status == expected for status, expected in tried.values()), saw


def _answer(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of the server's answer."""
    line = http.client.HTTPConnection(ADDRESS, port, timeout=START_S)
    try:
        line.request(method, path, body=body, headers=headers)
        return line.getresponse().status
    finally:
        line.close()
