"""Advice about common errors."""

SEE_THE_OTHERS = "another worker ended before: look at the worker that failed first"
STORE_GONE = f"rank 0's store is gone; {SEE_THE_OTHERS}"
COLLECTIVE_WAITED = (
    "a collective waited for a worker that is stuck, far behind or gone: find the rank that did not take part in it. "
    "The server can name that rank if the agents have a --silence-timeout below the collective's timeout, and if no "
    "worker writes anything in that time"
)
WORKER_LATE = "not every worker reached init_process_group in time: find the missing rank"
STORE_UNREACHABLE = (
    "rank 0's store did not answer at MASTER_ADDR:MASTER_PORT: rank 0 has ended or is late, or a firewall drops that "
    "port"
)
PATH_BROKEN = (
    "another node, or the network to it, does not answer: see whether that node failed first, and check the links of "
    "both nodes (--check links,network)"
)

GPU_MEMORY_FULL = (
    "the GPU's memory is full: use a smaller batch or gradient checkpointing; nvidia-smi shows all processes on that "
    "GPU"
)
MORE_SHM = "enlarge /dev/shm (docker run --shm-size, an emptyDir of medium Memory) or use fewer data loader workers"
DATA_LOADER_KILLED = (
    "a data loader worker was killed, often for lack of memory: use fewer of them, or a smaller prefetch_factor"
)
DATA_LOADER_CRASHED = (
    "a data loader worker crashed in native code, such as a decoder: run with PYTHONFAULTHANDLER=1, or with "
    "num_workers=0, to see where"
)
DATA_LOADER_EXITED = (
    "a data loader worker has ended: its own error is earlier in the output, or it was killed for lack of memory; "
    "num_workers=0 shows the error in full"
)
DISK_FULL = "the disk is full: check df -h, and df -i for its inodes"
NODE_DISK_FULL = (
    "the disk of this node is full: check df -h, and df -i for its inodes, and what has filled it (DiskFull, temporary)"
)
NODE_MEMORY_FULL = (
    "there is not enough memory on the node, or within a limit (ulimit -v): use a smaller batch, or fewer data loader "
    "workers"
)
NOT_WRITTEN = "a file could not be written, often because the disk is full (df -h) or its server failed"
STORAGE_FAILED = (
    "the storage behind that path failed: look at the mount and at dmesg on this node, and start agents with "
    "--check storage=PATH"
)
CHECKPOINT_DAMAGED = (
    "the file is incomplete or damaged: load an earlier checkpoint, and write each checkpoint under a temporary name "
    "before you rename it"
)
TOO_MANY_PROCESSES = (
    "this node's limit of processes and threads is used up: raise ulimit -u, or the container's pids limit"
)
TOO_MANY_FILES = (
    "this process has used up its limit of open files: raise ulimit -n, or call "
    "torch.multiprocessing.set_sharing_strategy('file_system')"
)

HARDWARE_FAILED = "this node's hardware has failed: drain it, and start the agent on another node"
SUSPECT_GPU = (
    "perhaps the GPU or its driver: look for an Xid in this node's dmesg, and start agents with --check gpus,ecc,xid"
)
GPU_BUSY = "another process holds the GPU, or its driver is in trouble: look at nvidia-smi on this node"
WATCHDOG_STUCK = (
    "this rank's watchdog was stuck: the CUDA driver or NCCL hung, or the script held the GIL. Look at the stacks and "
    "at dmesg for an Xid"
)
OWN_TIMER = (
    "the last output is from a timer of the script (faulthandler.dump_traceback_later): the stacks show where it "
    "waited. With exit=True, the timer has ended the process"
)
DRIVER_TOO_OLD = "this node's NVIDIA driver is too old for this torch: compare nvidia-smi on the nodes"
OTHER_GPU = "this torch has no code for this node's GPU: compare torch and the GPUs of the nodes"
CUDA_AFTER_FORK = "start the script's own processes with the method 'spawn', or use CUDA only after they have started"
FIND_THE_KERNEL = (
    "run with CUDA_LAUNCH_BLOCKING=1 to see the kernel that failed; often an index or a label is out of range"
)
FEWER_GPUS = "more workers than GPUs: compare --nproc with CUDA_VISIBLE_DEVICES and nvidia-smi"
ONE_GPU_EACH = "two workers use one GPU: call torch.cuda.set_device(LOCAL_RANK), and use --nproc gpu"
NCCL_FAILED = (
    "run with NCCL_DEBUG=INFO; often the cause is the wrong network interface (NCCL_SOCKET_IFNAME) or two ranks on one "
    "GPU"
)
COLLECTIVES_DIFFER = (
    "the ranks called different collectives, or tensors of different sizes: run with TORCH_DISTRIBUTED_DEBUG=DETAIL to "
    "see which"
)
NAME_UNKNOWN = "this node cannot look up rank 0's name: start rank 0's agent with --local-addr and an IP address"
GLOO_LOOPBACK = (
    "gloo has chosen a loopback address, which other nodes cannot reach: on every node set GLOO_SOCKET_IFNAME to "
    "the network interface that connects the nodes"
)

PORT_TAKEN = "another process uses that port: let the agent choose, which reserves a fresh MASTER_PORT for each round"
NO_LOCAL_RANK_FLAG = "the script does not accept --local-rank: read LOCAL_RANK from the environment, as under torchrun"
MODULE_MISSING = (
    "this node's Python lacks the module. Workers run with node-agent's own Python: install the module there, or name "
    "another Python in PYTHON_EXEC. If only some nodes fail, compare their interpreters and PYTHONPATH"
)
LIBRARY_MISSING = "this node lacks a native library, or has another version: compare the nodes, and LD_LIBRARY_PATH"
NAME_MISSING = (
    "the module is there, but not that name: two versions do not fit together, or modules import each other. Compare "
    "pip freeze on the nodes"
)
SYNTAX_ERROR = "Python cannot read the script, or a module that it imports: the traceback's last line shows where"
