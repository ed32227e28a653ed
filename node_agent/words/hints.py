"""What to do about common errors."""

SEE_THE_OTHERS = "another worker ended before: look at the worker that failed first"
STORE_GONE = f"rank 0's store is gone; {SEE_THE_OTHERS}"
COLLECTIVE_WAITED = (
    "a collective waited for a worker that is stuck, far behind or gone: find the rank that did not take part in it"
)
WORKER_LATE = "not every worker reached init_process_group in time: find the missing rank"

GPU_MEMORY_FULL = (
    "the GPU's memory is full: use a smaller batch or gradient checkpointing; nvidia-smi shows all processes on that "
    "GPU"
)
MORE_SHM = "enlarge /dev/shm (docker run --shm-size, an emptyDir of medium Memory) or use fewer data loader workers"
DATA_LOADER_KILLED = (
    "a data loader worker was killed, often for lack of memory: use fewer of them, or a smaller prefetch_factor"
)
DISK_FULL = "the disk is full: check df -h, and df -i for its inodes"
NODE_MEMORY_FULL = (
    "there is not enough memory on the node, or within a limit (ulimit -v): use a smaller batch, or fewer data loader "
    "workers"
)
TOO_MANY_FILES = "raise ulimit -n, or call torch.multiprocessing.set_sharing_strategy('file_system')"

HARDWARE_FAILED = "this node's hardware has failed: drain it, and start the agent on another node"
FIND_THE_KERNEL = (
    "run with CUDA_LAUNCH_BLOCKING=1 to see the kernel that failed; often an index or a label is out of range"
)
FEWER_GPUS = "more workers than GPUs: compare --nproc with CUDA_VISIBLE_DEVICES and nvidia-smi"
ONE_GPU_EACH = "two workers use one GPU: call torch.cuda.set_device(LOCAL_RANK), and use --nproc gpu"
NCCL_FAILED = (
    "run with NCCL_DEBUG=INFO; often the cause is the wrong network interface (NCCL_SOCKET_IFNAME) or two ranks on one "
    "GPU"
)
GLOO_LOOPBACK = (
    "gloo has chosen a loopback address, which other nodes cannot reach: on every node set GLOO_SOCKET_IFNAME to "
    "the network interface that connects the nodes"
)

PORT_TAKEN = "another process uses that port: let the agent choose, which reserves a fresh MASTER_PORT for each round"
NO_LOCAL_RANK_FLAG = "the script does not accept --local-rank: read LOCAL_RANK from the environment, as under torchrun"
MODULE_MISSING = "this node's Python lacks the module: compare the interpreters and PYTHONPATH of the nodes"
SYNTAX_ERROR = "Python cannot read the script, or a module that it imports: the traceback's last line shows where"
