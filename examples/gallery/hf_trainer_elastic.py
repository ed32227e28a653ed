"""Hugging Face transformers: `Trainer` with any number of workers, each sample once an epoch: `node_agent.data`.

By itself, `Trainer` skips as many batches on each rank as before, whatever the number of ranks is now. Here its
checkpoint has the position of the data, as the state of a callback.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from node_agent.data import ElasticLoader, ElasticSampler

VOCABULARY, LENGTH, GLOBAL_BATCH = 32, 16, 8


class Counting(Dataset[dict[str, Any]]):
    """Sequences that count upwards from anywhere."""

    def __len__(self) -> int:
        return 28

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = torch.arange(index, index + LENGTH) % VOCABULARY
        return {"input_ids": numbers, "labels": numbers, "index": index}


class DataPosition(TrainerCallback, ExportableState):
    """Callback whose state is the loader's. `Trainer` makes a new one from a checkpoint, and sets its attributes."""

    loader: ElasticLoader

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"position": self.loader.state_dict()}}

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "position":
            self.loader.load_state_dict(value)


class Elastic(Trainer):
    """Trainer that loads each global batch by shares, and prints its samples and its loss."""

    def get_train_dataloader(self) -> Any:
        return DataPosition.loader

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        self.samples = inputs.pop("index").tolist()
        return super().training_step(model, inputs, *rest)

    def log(self, logs: dict[str, float], *args: object, **how: object) -> None:
        super().log(logs, *args, **how)
        if "loss" in logs:
            shares: list[Any] = [None] * self.args.world_size
            dist.all_gather_object(shares, self.samples)
            samples = sorted(number for share in shares for number in share)
            print(f"step={self.state.global_step} rank={self.args.process_index} of {self.args.world_size} "
                  f"loss={logs['loss']!r} samples={samples}")  # fmt: skip


def newest_checkpoint(folder: str) -> str | None:
    whole = [state.parent for state in Path(folder).glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument("--output", default="trainer", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, use_cache=False,
                        bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)  # fmt: skip
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        ignore_data_skip=True,  # the loader continues by itself
        restore_callback_states_from_checkpoint=True,
        learning_rate=0.01,
        logging_steps=1,
        save_steps=2,
        save_total_limit=2,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    data = Counting()
    batches = ElasticSampler(len(data), GLOBAL_BATCH)
    DataPosition.loader = ElasticLoader(DataLoader(data, batch_sampler=batches, num_workers=2))
    trainer = Elastic(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[DataPosition()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output))


if __name__ == "__main__":
    main()
    # Trainer does not destroy its process group. A thread of gloo that is busy when Python ends aborts the worker.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
