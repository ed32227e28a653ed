"""Hugging Face transformers: `Trainer` continues from the newest complete checkpoint in its output folder.

It writes `trainer_state.json` last. A folder without that file is an incomplete checkpoint of a killed run, but
`get_last_checkpoint` would return it. A tiny language model with random weights learns to count, and nothing is
downloaded.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, LENGTH = 32, 16


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards from anywhere."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = torch.arange(index, index + LENGTH) % VOCABULARY
        return {"input_ids": numbers, "labels": numbers}


class Report(Trainer):
    """Trainer that prints each loss."""

    def log(self, logs: dict[str, float], *args: object, **how: object) -> None:
        super().log(logs, *args, **how)
        if "loss" in logs:
            print(f"step={self.state.global_step} rank={self.args.process_index} loss={logs['loss']!r}")


def newest_checkpoint(folder: str) -> str | None:
    whole = [state.parent for state in Path(folder).glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=8, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument("--output", default="trainer", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, use_cache=False,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        logging_steps=1,
        save_steps=2,
        save_total_limit=2,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Report(GPT2LMHeadModel(config), arguments, train_dataset=Counting())
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output))


if __name__ == "__main__":
    main()
    # Trainer does not destroy its process group. A thread of gloo that is busy when Python ends aborts the worker.
    # `destroy_process_group` does not end that thread while libraries keep the group (accelerate imports some late).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
