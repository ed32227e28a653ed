"""The script that both launchers run: reports where it is, then waits or steps together with its peers to the end.

Arguments: the scenario's folder, and the kind of worker. `idle` does nothing. `deaf` also ignores SIGTERM. `together`
takes steps with its peers, as training does, and fails when one of them is gone.
"""

import time

AT_S = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402

FOLDER, KIND = sys.argv[1:]
STEP_S = 0.05
VARIABLES = {
    "rank": "RANK",
    "group_rank": "GROUP_RANK",
    "world_size": "WORLD_SIZE",
    "restart_count": "TORCHELASTIC_RESTART_COUNT",
    "master_port": "MASTER_PORT",
}


def report(event: str, at_s: float) -> None:
    said = {"event": event, "node": os.environ["TEST_NODE"], "pid": os.getpid(), "at_s": at_s}
    said |= {name: int(os.environ[variable]) for name, variable in VARIABLES.items()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.sendto(json.dumps(said).encode(), FOLDER + "/reports")


def is_told_to_finish() -> bool:
    return os.path.exists(FOLDER + "/finish")


def idle() -> None:
    while not is_told_to_finish():
        time.sleep(STEP_S)


def together() -> None:
    import torch
    import torch.distributed as dist

    def everyone(share: bool) -> bool:
        total = torch.tensor([int(share)])
        dist.all_reduce(total)
        return int(total) == dist.get_world_size()

    dist.init_process_group("gloo")
    everyone(True)
    report("stepped", time.monotonic())
    while not everyone(is_told_to_finish()):
        time.sleep(STEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    if KIND == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"worker {os.getpid()} speaks", flush=True)
    report("started", AT_S)
    if KIND == "together":
        together()
    else:
        idle()
