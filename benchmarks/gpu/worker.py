"""Worker of the GPU checks: `worker.py WHAT`. It prints what it sees and when, one line of JSON each.

WHAT is one of these. `once`: do one all_reduce and exit. `stay`: keep 1 GiB until killed. `most`: keep 80 % of the
GPU's memory until killed. `kernel`: wait for a kernel that does not end. `collective`: rank 0 leaves the others in an
all_reduce. `memory`: allocate until nothing is left.
"""

import json
import os
import sys
import time

T = {"exec": time.monotonic()}
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


def say(**more: object) -> None:
    print("GPU " + json.dumps({"rank": RANK, "pid": os.getpid(), **more}), flush=True)


def main(what: str) -> None:
    import torch
    import torch.distributed as dist

    T["import"] = time.monotonic()
    device = torch.device("cuda", LOCAL_RANK)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    T["context"] = time.monotonic()
    dist.init_process_group("nccl", device_id=device)
    T["init"] = time.monotonic()
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    T["first all_reduce"] = time.monotonic()
    say(
        times=T, sum=ones.item(), devices=torch.cuda.device_count(), name=torch.cuda.get_device_name(device),
        torch=torch.__version__, cuda=torch.version.cuda, nccl=".".join(map(str, torch.cuda.nccl.version())),
        cpus=sorted(os.sched_getaffinity(0)), world=dist.get_world_size(),
    )  # fmt: skip
    if what == "once":
        dist.destroy_process_group()
        return
    if what in ("stay", "most"):
        number = 1 << 28 if what == "stay" else torch.cuda.mem_get_info()[1] // 5  # 4 bytes each
        kept = torch.ones(number, device=device)
        torch.cuda.synchronize()
        say(keeps=kept.nbytes)
        time.sleep(3600)
    if what == "memory":
        kept_all = []
        while True:
            kept_all.append(torch.ones(1 << 30, device=device))
    from node_agent import progress

    for step in range(3):
        progress(step=step)
        time.sleep(0.1)
    say(hangs=what)
    if what == "kernel":
        torch.cuda._sleep(1 << 62)
        torch.cuda.synchronize()
    elif RANK == 0:
        time.sleep(3600)
    dist.all_reduce(ones)
    torch.cuda.synchronize()


main(sys.argv[1])
