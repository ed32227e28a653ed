"""Command lines that run under both launchers, and what their workers do.

Recipes are common commands from those projects' pages, with as few nodes and workers as possible.
"""

from collections.abc import Iterator

from tests.parity.observe import BETWEEN_NODES, Line


def nodes(text: str, number: int = 2) -> str:
    """Return one command line on several nodes. `%d` in it is the node's number."""
    return BETWEEN_NODES.join(text.replace("%d", str(rank)) for rank in range(number))


FAIL = "meet; [ $RANK = 1 ] && exit 3; block"
"""One of two workers fails when both are there."""

ONE_NODE = [
    # nanoGPT, modded-nanogpt, llm.c, minGPT
    "torchrun --standalone --nproc_per_node=4 train.py config/train_gpt2.py",
    "torchrun --standalone --nproc_per_node=2 train.py --batch_size=32 --compile=False --wandb_log=False",
    "OMP_NUM_THREADS=8 torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=20 --run=dummy",
    "torchrun --standalone --nproc_per_node=8 train_gpt.py",
    # torchtitan
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nproc_per_node=8 --rdzv_backend c10d "
    "--rdzv_endpoint=localhost:0 --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train "
    "--job.config_file ./llama3.toml",
    "torchrun --nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --local-ranks-filter 0,1 --role rank "
    "--tee 3 train.py --training.steps=10 --parallelism.tensor_parallel_degree 2",
    # Megatron-LM
    "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost "
    "--master_port PORT pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
    "--use-distributed-optimizer --split 949,50,1 --log-interval 100",
    "torchrun --nproc_per_node 2 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port PORT "
    "tools/checkpoint.py --model-type GPT",
    "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 2 examples/run_simple_mcore_train_loop.py",
    # transformers, accelerate, TRL, diffusers, axolotl, LLaMA-Factory
    "torchrun --nproc_per_node 8 examples/pytorch/language-modeling/run_clm.py --model_name_or_path gpt2 "
    "--do_train --do_eval --output_dir /tmp/test-clm",
    "torchrun --nproc_per_node=2 --master_port=PORT train.py --model_name_or_path ./llama --bf16 True --fsdp "
    "'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer",
    "torchrun --nproc_per_node 2 nlp_example.py --mixed_precision fp16",
    "torchrun --nproc_per_node 2 --nnodes 1 ./nlp_example.py",
    "torchrun --nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port PORT src/train.py "
    "examples/train_lora.yaml",
    "torchrun --nproc_per_node=4 --rdzv-id 100 --rdzv-backend c10d --rdzv-endpoint localhost:0 -m axolotl.cli.train "
    "config.yml",
    "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 examples/run_glue.py --task_name mrpc",
    # DeepSpeed without its own launcher, FairScale, Horovod-like scripts
    "torchrun --nproc_per_node=2 train.py --deepspeed ds_config.json --zero-stage 3",
    "python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py --deepspeed_config ds_config.json",
    # torchvision references, pytorch/examples, detection libraries
    "torchrun --nproc_per_node=8 train.py --model resnet50 --batch-size 128 --lr 0.5 --lr-scheduler cosineannealinglr",
    "torchrun --nproc_per_node=2 train.py --dataset coco --model maskrcnn_resnet50_fpn --epochs 26 --lr-steps 16 22",
    "torchrun --nnodes 1 --nproc_per_node 4 train.py --data-path /imagenet --test-only --pretrained",
    "python -m torch.distributed.launch --nproc_per_node=2 --master_port=PORT tools/train.py configs/faster_rcnn.py "
    "--launcher pytorch",
    "PYTHONPATH=.. python -m torch.distributed.launch --nnodes=1 --node_rank=0 --master_addr=127.0.0.1 "
    "--nproc_per_node=2 --master_port=PORT tools/test.py config.py work_dirs/latest.pth --eval bbox --launcher pytorch",
    "python -m torch.distributed.launch --nproc_per_node=2 main_swin.py --cfg configs/swin.yaml --data-path imagenet",
    "python -m torch.distributed.launch --nproc_per_node=4 --use_env main.py --model deit_small_patch16_224",
    "python -m torch.distributed.run --nproc_per_node 2 --master_port PORT yolov5/train.py --batch 64 --device 0,1",
    "torchrun --nproc_per_node=2 main_pretrain.py --batch_size 64 --accum_iter 4 --mask_ratio 0.75 --norm_pix_loss",
    # PyTorch tutorials: DDP, elastic, FSDP, tensor parallel
    "torchrun --standalone --nproc_per_node=gpu multigpu_torchrun.py 50 10",
    "torchrun --standalone --nproc-per-node=auto multigpu.py 50 10",
    "torchrun --nproc_per_node=4 elastic_ddp.py",
    "torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 "
    "elastic_ddp.py",
    "torchrun --standalone --nnodes=1 --nproc-per-node=2 train.py arg1 --arg2=2",
    "torchrun --nnodes 1 --nproc_per_node 4 T5_training.py",
    "torchrun --nproc-per-node=2 --standalone --max-restarts=3 main.py --resume",
    "torchrun --nnodes=1:1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=job --rdzv-backend=c10d "
    "--rdzv-endpoint=localhost:0 train.py",
    # Lightning, fairseq, NeMo, OpenCLIP, DINO, SAM, Whisper
    "torchrun --nproc_per_node=2 --nnodes=1 train.py --trainer.devices 2 --trainer.strategy ddp",
    "torchrun --nproc_per_node 4 -m open_clip_train.main --train-data /data/shards/{00000..00010}.tar --precision amp",
    "torchrun --nproc_per_node 2 -m training.main --train-num-samples 10968539 --batch-size 320",
    "python -m torch.distributed.launch --nproc_per_node=2 main_dino.py --arch vit_small --data_path /imagenet/train",
    "torchrun --nproc_per_node=1 example_chat_completion.py --ckpt_dir llama-2-7b-chat/ --max_seq_len 512",
    "torchrun --nproc_per_node 2 generate.py --ckpt-path /models --config configs/671b.json --interactive",
    # containers, notebooks, Slurm on one node, TorchX
    "torchrun --nproc_per_node=2 ./workspace/train.py",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO torchrun --standalone --nproc_per_node 2 ./train.py",
    "SLURM_JOB_ID=4711 SLURM_PROCID=0 SLURM_NTASKS=1 torchrun --standalone --nproc_per_node=2 train.py",
    "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id app-x1 --nnodes 1 --nproc_per_node 2 --tee 3 "
    "--role '' train.py",
    "torchrun --nnodes 1 --nproc_per_node 2 --log-dir ./logs --redirects 3 train.py",
    "torchrun --nproc_per_node 2 --no_python PROBE --config a.yaml",
    "torchrun --standalone --nproc_per_node 2 --no-python numactl-like PROBE",
]  # fmt: skip

SEVERAL_NODES = [
    nodes("torchrun --nnodes=2 --node_rank=%d --nproc_per_node=2 --master_addr=127.0.0.1 --master_port=PORT train.py"),
    nodes("torchrun --nproc_per_node 2 --nnodes 2 --node_rank %d --master_addr localhost --master_port PORT "
          "pretrain_gpt.py --tensor-model-parallel-size 2"),
    nodes("torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id 4711 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:PORT "
          "train.py --lr 0.1"),
    nodes("torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=3 --rdzv-id=nightly --rdzv-backend=c10d "
          "--rdzv-endpoint=localhost:PORT elastic_ddp.py"),
    nodes("PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=%d PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=PORT "
          "torchrun train.py"),
    nodes("PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=127.0.0.1:PORT PET_RDZV_ID=job-0 PET_NNODES=2 PET_NPROC_PER_NODE=1 "
          "PET_MAX_RESTARTS=100 torchrun train.py"),
    nodes("python -m torch.distributed.launch --nnodes=2 --node_rank=%d --nproc_per_node=1 --master_addr=127.0.0.1 "
          "--master_port=PORT train.py --local-batch 8"),
    nodes("torchrun --nnodes 2 --node-rank %d --rdzv-endpoint 127.0.0.1:PORT train.py"),
    nodes("torchrun --nnodes 2:2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id 7 "
          "--rdzv-conf 'join_timeout=60,read_timeout=60' train.py"),
    nodes("SLURM_NODEID=%d SLURM_NNODES=2 torchrun --nnodes 2 --nproc_per_node 1 --node_rank %d --rdzv_id 99 "
          "--master_addr 127.0.0.1 --master_port PORT train.py"),
]  # fmt: skip

SAMPLES = {
    "nnodes": ("1", "1:1"), "nproc-per-node": ("2",), "rdzv-backend": ("static",), "rdzv-endpoint": ("127.0.0.1:PORT",),
    "rdzv-id": ("nightly",), "rdzv-conf": ("timeout=30",), "max-restarts": ("2",), "monitor-interval": ("0.05",),
    "start-method": ("fork",), "event-log-handler": ("null",), "role": ("trainer",), "log-dir": ("logs",),
    "redirects": ("3", "0:1"), "tee": ("3", "0:2"), "local-ranks-filter": ("0", "1"),
    "duplicate-stdout-filters": ("apple,pear",), "duplicate-stderr-filters": ("apple",), "node-rank": ("0",),
    "master-addr": ("localhost",), "master-port": ("PORT",), "local-addr": ("127.0.0.1",),
    "signals-to-handle": ("SIGTERM,SIGUSR1",), "shutdown-timeout": ("5",), "numa-binding": ("node",),
}  # fmt: skip
"""One or two values for each flag that takes a value."""
SWITCHES = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
BESIDE = {
    "redirects": "--log-dir logs", "tee": "--log-dir logs", "duplicate-stdout-filters": "--log-dir logs -r 3",
    "duplicate-stderr-filters": "--log-dir logs -t 3", "local-ranks-filter": "--nproc-per-node 2",
}  # fmt: skip
"""Flags that another flag needs to have an effect."""
SHORTENED = {
    "nnodes": "nn", "nproc-per-node": "nproc-", "rdzv-backend": "rdzv-b", "rdzv-endpoint": "rdzv_e",
    "rdzv-id": "rdzv-i", "rdzv-conf": "rdzv_c", "max-restarts": "max_r", "monitor-interval": "monitor-i",
    "start-method": "start_m", "event-log-handler": "event-l", "role": "ro", "log-dir": "log-d", "redirects": "red",
    "tee": "te", "local-ranks-filter": "local-r", "duplicate-stdout-filters": "duplicate-stdo",
    "duplicate-stderr-filters": "duplicate_stde", "node-rank": "node-r", "master-addr": "master-a",
    "master-port": "master_p", "local-addr": "local-a", "signals-to-handle": "signals_t",
    "shutdown-timeout": "shutdown-", "standalone": "stand", "module": "mod", "no-python": "no-p",
    "run-path": "run-p", "virtual-local-rank": "virtual_l",
}  # fmt: skip
"""Beginnings of flags, long enough for every argparse. The flag that has no variable and takes seconds is left out."""
WRITES = "say apple; say plum; cry apple; cry plum"


def spellings() -> Iterator[Line]:
    """Yield every flag in each of its forms. Flags with values come in pairs, which halves the command lines."""
    for pair in zip([*SAMPLES][::2], [*SAMPLES][1::2], strict=True):
        above = " ".join(dict.fromkeys(["torchrun", *(BESIDE[flag] for flag in pair if flag in BESIDE)]))
        under = {flag: flag.replace("-", "_") for flag in pair}
        variables = " ".join(f"PET_{under[flag].upper()}={SAMPLES[flag][0]}" for flag in pair if flag in SHORTENED)
        shortened = " ".join(f"--{SHORTENED[flag]}={SAMPLES[flag][-1]}" for flag in pair if flag in SHORTENED)
        spaced = " ".join(f"--{flag} {SAMPLES[flag][0]}" for flag in pair if flag in SHORTENED)
        joined = " ".join(f"--{under[flag]}={SAMPLES[flag][-1]}" for flag in pair)
        for flags in (spaced, joined, shortened):
            yield Line(f"{above} {flags} train.py", WRITES)
        yield Line(f"{variables} {above} train.py", WRITES)
    for flag in SWITCHES:
        under, script = flag.replace("-", "_"), "PROBE" if flag == "no-python" else "train.py"
        fork = "--start-method fork " if flag == "run-path" else ""
        yield Line(f"torchrun {fork}--{flag} {script} --lr 1")
        yield Line(f"torchrun {fork}--{SHORTENED[flag]} {script} --lr 1")
        yield Line(f"PET_{under.upper()}=1 torchrun {fork}{script} --lr 1")
        yield Line(f"PET_{under.upper()}=0 torchrun train.py --lr 1")


WRONG = [
    "torchrun", "torchrun --standalone", "torchrun --nproc-per-node 2", "torchrun --no-such-flag train.py",
    "torchrun --nproc train.py", "torchrun --rdzv train.py", "torchrun --ma=1 train.py", "torchrun -x train.py",
    "torchrun --standalone=1 train.py", "torchrun --nnodes", "torchrun --nnodes=", "torchrun --nnodes 0 train.py",
    "torchrun --nnodes 2:1 train.py", "torchrun --nnodes 1:2:3 train.py", "torchrun --nnodes many train.py",
    "torchrun --nnodes -1 train.py", "torchrun --nproc-per-node 0 train.py", "torchrun --nproc-per-node -1 train.py",
    "torchrun --nproc-per-node many train.py", "torchrun --nproc-per-node 1.5 train.py",
    "torchrun --max-restarts -1 train.py", "torchrun --max-restarts few train.py",
    "torchrun --max-restarts 1.5 train.py", "torchrun --monitor-interval soon train.py",
    "torchrun --start-method thread train.py", "torchrun --rdzv-backend nowhere train.py",
    "torchrun --rdzv-conf timeout train.py", "torchrun --rdzv-conf =1 train.py",
    "torchrun --rdzv-endpoint 127.0.0.1:99999 train.py", "torchrun --rdzv-endpoint 127.0.0.1:http train.py",
    "torchrun --master-port http train.py", "torchrun --master-port 99999 train.py", "torchrun --node-rank x train.py",
    "torchrun -r 4 train.py", "torchrun -r out train.py", "torchrun -r 0:5 train.py", "torchrun -t x train.py",
    "torchrun -t 0:1,1 train.py", "torchrun --local-ranks-filter a,b train.py",
    "torchrun --local-ranks-filter 0,,1 train.py", "torchrun --logs-specs none-such train.py",
    "torchrun --numa-binding sideways train.py", "torchrun --shutdown-timeout never train.py",
    "torchrun --shutdown-timeout -1 train.py", "torchrun --shutdown-timeout 1.5 train.py",
    "torchrun --event-log-handler none-such train.py", "torchrun --signals-to-handle SIGNOPE train.py",
    "torchrun --no-python -m train", "torchrun --no-python ./no-such-program", "torchrun --no-python ./train.py",
    "PET_NNODES=many torchrun train.py", "PET_MAX_RESTARTS=few torchrun train.py",
    "PET_STANDALONE=true torchrun train.py", "PET_NPROC_PER_NODE= torchrun train.py", "PET_NNODES= torchrun train.py",
    "PYTHON_EXEC=/no/such/python torchrun train.py", "torchrun --log-dir /proc/none train.py",
    "python -m torch.distributed.launch", "python -m torch.distributed.launch --nproc_per_node x train.py",
]  # fmt: skip

FAILS_WITH_REASON = (
    """printf '{"message": {"message": "Lost: it", "extraInfo": {"py_callstack": "stack", "timestamp": "1"}}}' """
    """> $TORCHELASTIC_ERROR_FILE; exit 1"""
)
"""A worker that leaves an error file, like @record."""
FAILURES = [
    Line("torchrun --standalone train.py", "exit 3"),
    Line("torchrun --standalone train.py", "say begins; cry breaks; exit 1"),
    Line("torchrun --standalone train.py", "exit 255"),
    Line("torchrun --standalone train.py", "kill -KILL $$"),
    Line("torchrun --standalone train.py", "kill -SEGV $$"),
    Line("torchrun --standalone train.py", "kill -TERM $$"),
    Line("torchrun --standalone train.py", "kill -USR1 $$"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", FAIL),
    Line("torchrun --standalone --nproc-per-node 4 train.py", FAIL),
    Line("torchrun --standalone --nproc-per-node 2 train.py", "meet; [ $RANK = 0 ] && kill -ABRT $$; block"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", "trap 'say leaves; exit 0' TERM; " + FAIL),
    Line("torchrun --standalone --nproc-per-node 2 train.py", "meet; [ $RANK = 0 ] && exit 0; exit 5"),
    Line("torchrun --standalone --max-restarts 1 train.py", "exit 3"),
    Line("torchrun --standalone --max-restarts 2 train.py", "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3"),
    Line("torchrun --standalone --nproc-per-node 2 --max-restarts 1 train.py",
         "meet; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && exit 3; block"),
    Line("torchrun --standalone --max-restarts 1 --log-dir logs -r 3 train.py",
         "say $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"),
    Line("torchrun --nproc-per-node 2 --master-port PORT train.py", FAIL),
    Line("torchrun --standalone --no-python PROBE", "exit 3"),
    Line("torchrun --standalone --no-python sh -c 'exit 3'"),
    Line("torchrun --standalone --no-python false"),
    Line("torchrun --standalone -m package.train", "exit 3"),
    Line("python -m torch.distributed.launch train.py", "exit 3"),
    Line("TORCHELASTIC_ERROR_FILE=error.json torchrun --standalone train.py", "exit 3"),
    Line("torchrun --standalone train.py", FAILS_WITH_REASON),
    Line("TORCHELASTIC_ERROR_FILE=error.json torchrun --standalone train.py", FAILS_WITH_REASON),
]  # fmt: skip

HEARS = 'for name in TERM INT HUP QUIT USR1 USR2; do trap "say hears $name; exit 0" $name; done; meet; block'
SIGNALS = [
    *(Line("torchrun --standalone train.py", HEARS, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT")),
    *(Line("torchrun --standalone train.py", "meet; block", f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT")),
    Line("torchrun --standalone train.py", HEARS, "SIGUSR1"),
    Line("torchrun --standalone --signals-to-handle SIGUSR1 train.py", HEARS, "SIGUSR1"),
    Line("torchrun --standalone --signals-to-handle SIGUSR1,SIGUSR2 train.py", HEARS, "SIGUSR2"),
    Line("torchrun --standalone --signals-to-handle SIGUSR1 train.py", HEARS, "SIGTERM"),
    Line("PET_SIGNALS_TO_HANDLE=SIGTERM,SIGUSR2 torchrun --standalone train.py", HEARS, "SIGUSR2"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", HEARS, "SIGTERM"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", HEARS, "SIGINT"),
    Line("torchrun --nproc-per-node 2 --master-port PORT train.py", HEARS, "SIGTERM"),
    Line("torchrun --standalone --shutdown-timeout 1 train.py", "trap '' TERM; meet; block", "SIGTERM"),
    Line("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1 torchrun --standalone train.py", "trap '' TERM; meet; block", "SIGTERM"),
    Line("torchrun --standalone --max-restarts 3 train.py", HEARS, "SIGTERM"),
    Line("torchrun --standalone train.py", "trap 'exit 7' TERM; meet; block", "SIGTERM"),
    Line("torchrun --standalone train.py", "trap 'say saves; meet; say saved; exit 0' TERM; meet; block", "SIGTERM"),
    Line("torchrun --standalone train.py", ignored=(1,)),
    Line("torchrun --standalone train.py", HEARS, "SIGINT", ignored=(2, 3)),
    Line("torchrun --standalone --log-dir logs -r 3 train.py", HEARS, "SIGTERM"),
    Line(nodes("torchrun --nnodes=2 --node-rank=%d --master-addr=127.0.0.1 --master-port=PORT train.py"), HEARS,
         "SIGTERM"),
]  # fmt: skip

ALL_KINDS = "say one; cry two; say three"
LOGS = [
    *(f"torchrun --standalone --nproc-per-node 2 --log-dir logs {flags} train.py" for flags in (
        "", "-r 0", "-r 1", "-r 2", "-r 3", "-t 0", "-t 1", "-t 2", "-t 3", "-r 0:1,1:2", "-t 0:3", "-r 1 -t 2",
        "-r 3 -t 3",
        "-r 1:3", "-r 5:3", "-r 3 --local-ranks-filter 1", "-t 3 --local-ranks-filter 0", "--local-ranks-filter 1",
        "-t 3 --role trainer", "-t 3 --duplicate-stdout-filters one", "-r 3 --duplicate-stdout-filters one,no",
        "-r 3 --duplicate-stdout-filters one --duplicate-stderr-filters two", "-r3", "-t3", "-r=3", "--redirects=0:3",
        "-t 3 --rdzv-id nightly",
    )),
    "torchrun --nproc-per-node 2 --master-port PORT --rdzv-id nightly --log-dir logs -r 3 train.py",
    "torchrun --nproc-per-node 2 --master-port PORT --log-dir logs/deep/er -t 3 train.py",
    "torchrun --nproc-per-node 2 --log-dir /dev/null -r 3 train.py",
    "torchrun --nproc-per-node 2 -r 3 train.py",
    "torchrun --nproc-per-node 2 -t 3 train.py",
    "PET_LOG_DIR=logs PET_REDIRECTS=3 torchrun --nproc-per-node 2 train.py",
    "PET_LOG_DIR=logs PET_TEE=0:1 torchrun --nproc-per-node 2 train.py",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='${role_name}-${rank}-${local_rank}: ' torchrun --nproc-per-node 2 -t 3 "
    "train.py",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${rank}]: ' torchrun --nproc-per-node 2 --role trainer -t 1 train.py",
]  # fmt: skip

NO_END = "[ $RANK = 1 ] || printf 'r0 no end'"
TWO_STREAMS = "p=$(printf %01000d 0); i=0; while [ $i -lt 600 ]; do say $i $p; cry $i $p; i=$((i+1)); done"
"""600 kB on each stream. The agent reads log files in pieces of 256 kB, and torchrun reads lines, by a thread for each
file. So their orders differ, also if both read only after the worker has ended, on a busy machine."""
STREAMS = [
    Line("torchrun --standalone train.py", does, streams=streams)
    for streams in ("pipe", "file", "one pipe", "terminal")
    for does in (
        "say one; cry two; say three; cry four",
        "printf 'r0 no end'",
        "printf 'r0 one\\rr0 two\\rr0 three\\n'",
        "printf 'r0 caf\\303\\251 \\377 \\033[31mred\\033[0m\\n'",
        "exec >&-; cry stdout is closed",
    )
    if (streams, does) != ("one pipe", "say one; cry two; say three; cry four")
] + [
    Line("torchrun --standalone train.py", TWO_STREAMS, streams="one pipe"),
    Line("torchrun --standalone -t 3 train.py", TWO_STREAMS, streams="one pipe"),
    Line("torchrun --standalone train.py", "printf 'r0 one '; cry two; say three", streams="one pipe"),
    Line("torchrun --standalone train.py", "say one; say two; say three", streams="one pipe"),
    Line("torchrun --standalone train.py", "read -r line || say end of stdin"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", "read -r line || say end of stdin"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", NO_END),
    Line("torchrun --standalone train.py", "i=0; while [ $i -lt 3000 ]; do say line $i; i=$((i+1)); done"),
    Line("torchrun --standalone -t 3 train.py", "i=0; while [ $i -lt 3000 ]; do say line $i; i=$((i+1)); done"),
    Line("torchrun --standalone --nproc-per-node 2 train.py", "say out; cry err", streams="terminal"),
    Line("torchrun --standalone -t 3 train.py", "say out; cry err", streams="terminal"),
    Line("torchrun --standalone --log-dir logs -r 3 train.py", "say out; cry err", streams="terminal"),
]

WORDS = [
    "torchrun --standalone train.py --flag=x -x --standalone --nproc-per-node 7",
    "torchrun --standalone train.py 'two words' '' \"quote's\" 'new\nline' '*.py' '$HOME' '~'",
    "torchrun --standalone --nproc-per-node 2 train.py '--out=part-${local_rank}' '$local_rank' '${rank}' '$$' '5$'",
    "torchrun --standalone -- train.py --lr 1", "torchrun --standalone train.py -- --lr 1",
    "torchrun --standalone -m package.train -- --lr 1", "torchrun --standalone -mpackage.train --lr 1",
    "torchrun train.py", "torchrun --nproc-per-node=1 ./train.py a=b", "torchrun --standalone café.py --naïve ✓",
    "torchrun --nproc-per-node 1 --nproc-per-node 2 train.py", "torchrun -r 3 -r 0 train.py",
    "torchrun --rdzv-conf 'timeout=30,read_timeout=9' train.py", "torchrun --rdzv-conf '\"timeout=30\"' train.py",
    "torchrun --rdzv-conf rank=0,none_such=1 train.py", "torchrun --standalone --rdzv-id mine --nnodes 1 train.py",
    "torchrun --standalone --rdzv-backend static --rdzv-endpoint 127.0.0.1:1 train.py",
    "torchrun --standalone --master-port PORT train.py", "torchrun --nnodes 1:1 --master-port PORT train.py",
    "torchrun --rdzv-endpoint 127.0.0.1:PORT train.py", "torchrun --rdzv-endpoint localhost:0 train.py",
    "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:PORT train.py",
    "torchrun --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id '' train.py",
    "torchrun --rdzv-backend c10d train.py", "torchrun --rdzv-backend C10D --rdzv-endpoint localhost:0 train.py",
    "torchrun --master-addr ::1 --master-port PORT train.py", "torchrun --role '' train.py",
    "CUDA_VISIBLE_DEVICES=4,7 torchrun --nproc-per-node 2 --virtual-local-rank train.py",
    "OMP_NUM_THREADS=3 TORCH_NCCL_ASYNC_ERROR_HANDLING=0 torchrun --nproc-per-node 2 train.py",
    "TORCHELASTIC_ENABLE_FILE_TIMER=1 torchrun --standalone train.py",
    "RANK=7 WORLD_SIZE=8 LOCAL_RANK=3 MASTER_ADDR=h MASTER_PORT=1 GROUP_RANK=2 ROLE_NAME=r torchrun train.py",
    "TORCHELASTIC_RUN_ID=outer TORCHELASTIC_RESTART_COUNT=4 TORCHELASTIC_ERROR_FILE=/tmp/e torchrun train.py",
]  # fmt: skip

STATIC = nodes("torchrun --nnodes 2 --node-rank %d --master-addr 127.0.0.1 --master-port PORT train.py")
C10D = nodes(
    "torchrun --nnodes 2 --node-rank %d --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id 7 train.py"
)


def once_more(text: str) -> str:
    """Return the command lines, for a run that may be restarted once."""
    return text.replace("--nnodes", "--max-restarts 1 --nnodes")


# Two workers, one a node. That of node 0 trains with the other one, to which something happens.
OTHER_FAILS = "[ $RANK = 1 ] || together; meet; lose; exit 3"
OTHER_IS_KILLED = "[ $RANK = 1 ] || together; meet; lose; kill -KILL $$"
ONCE = '[ -e "$FOUND/before-$RANK" ] && { meet; exit 0; }; : > "$FOUND/before-$RANK"; '
OTHER_IS_STOPPED = "[ $RANK = 1 ] || together; trap 'lose; say hears TERM; exit 0' TERM; meet; block"
LEFT_ALONE = Line(STATIC.replace("--nnodes", "--rdzv-conf timeout=15 --nnodes"), OTHER_IS_STOPPED, "SIGTERM@1")
LEFT_TO_GO_ON = Line(
    once_more(C10D.replace("--nnodes 2", "--nnodes 1:2 --rdzv-conf last_call_timeout=2")),
    "[ $WORLD_SIZE = 1 ] && exit 0; " + OTHER_IS_STOPPED,
    "SIGTERM@1",
)
FAILURES_OF_A_NODE = [
    Line(STATIC, OTHER_FAILS),
    Line(STATIC, OTHER_IS_KILLED),
    Line(once_more(STATIC), ONCE + OTHER_FAILS),
    LEFT_ALONE,
    Line(C10D, OTHER_FAILS),
    Line(once_more(C10D), ONCE + OTHER_IS_KILLED),
    Line(once_more(C10D), OTHER_FAILS),
    LEFT_TO_GO_ON,
    Line(C10D.replace("--nnodes", "--max-restarts 3 --nnodes"), HEARS, "SIGTERM"),
]  # fmt: skip

GROUPS: dict[str, list[Line]] = {
    "recipes for one node": [Line(text) for text in ONE_NODE],
    "recipes for several nodes": [Line(text) for text in SEVERAL_NODES],
    "flags": [*spellings()],
    "wrong words": [Line(text) for text in WRONG],
    "failures": FAILURES,
    "signals": SIGNALS,
    "failures of a node": FAILURES_OF_A_NODE,
    "log files": [Line(text, ALL_KINDS) for text in LOGS],
    "streams": STREAMS,
    "words": [Line(text) for text in WORDS],
}
"""Command lines, by what they show."""
