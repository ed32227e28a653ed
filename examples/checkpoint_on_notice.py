"""Training that saves when a notice says that its round ends: nothing is computed twice when a node is preempted.

    node-agent --standalone --nproc 2 --notice-timeout 20 examples/checkpoint_on_notice.py --steps 200
    kill -TERM <the agent>     # all ranks save at the same step; started again, it continues from there

With several nodes, `--nnodes 1:2 --endpoint HOST:29400`, the others continue without the node that left:
docs/how-to/save-before-leaving.md.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

import node_agent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument(
        "--step-s", type=float, default=0.05, help="let a step take this many seconds (default: %(default)g)"
    )
    parser.add_argument(
        "--checkpoint",
        default="checkpoint.pt",
        help="save into this file, on a disk that all nodes share (default: %(default)s)",
    )
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    model = torch.nn.Linear(8, 1)
    first = load(model, arguments.checkpoint)
    node_agent.notice()  # from now on the agent waits for this worker before the round ends
    say(f"begins at step {first} of {arguments.steps}")
    for step in range(first, arguments.steps):
        time.sleep(arguments.step_s)  # the work
        if somebody_was_told():
            save(model, step + 1, arguments.checkpoint)
            say(f"saved step {step + 1}")
            node_agent.acknowledge()
            return
    say(f"done after step {arguments.steps}")


def somebody_was_told() -> bool:
    """Return whether any rank has a notice. Ranks see it at different moments, and all must save at the same step."""
    told = torch.tensor(float(node_agent.notice() is not None))
    dist.all_reduce(told)
    return bool(told)


def save(model: torch.nn.Module, step: int, path: str) -> None:
    """Save the checkpoint. Return on every rank when the file exists."""
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step}, f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()


def load(model: torch.nn.Module, path: str) -> int:
    """Load the checkpoint if there is one. Return the step to continue with."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    return int(saved["step"])


def say(text: str) -> None:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {text}", flush=True)


if __name__ == "__main__":
    main()
