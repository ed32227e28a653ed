"""Errors that many have met before: what to do about them, and whether another worker's end is behind them.

A phrase marks a consequence only where it says that a peer is gone or late, in the words of the library that talks to
peers: "Connection reset by peer" alone may as well be a data store that the script reads from.
"""

import re
from collections.abc import Iterable

from msgspec import Struct
from rdzv_protocol.messages import Blame, Recurs

from node_agent.output.room import RAISE_THE_LIMIT

LONGEST_TEXT = 4_096


class Advice(Struct, frozen=True):
    """Advice on errors with a phrase.

    `phrase`: a regular expression, tried on one line or one message. Its gaps are bounded: a script may write
    anything, and must not keep the agent busy with it.
    """

    phrase: str
    hint: str
    is_consequence: bool = False
    blame: Blame = "unknown"
    """Blame for an error that has the phrase: the program's, the node's, or unknown."""
    recurs: Recurs = "unknown"
    """Whether such an error comes again after a restart: `at_start`, for a program that ends with it at once, or
    `at_step`, if it comes at a step at which it has come before."""
    is_of_disk: bool = False
    """Whether the error tells of a full disk: the node is to blame if it is its own, not a shared one."""


def find(texts: Iterable[str]) -> Advice | None:
    """Advice on the first text that any phrase fits; of several phrases the first in the table."""
    for text in texts:
        for advice in TABLE:
            if re.search(advice.phrase, text[:LONGEST_TEXT], re.IGNORECASE):
                return advice
    return None


_SEE_THE_OTHERS = "it follows from another worker's end: look at the worker that failed first"
MORE_SHM = "enlarge /dev/shm (docker run --shm-size, an emptyDir of medium Memory) or use fewer data loader workers"

TABLE = (
    # A peer is gone.
    Advice(r"gloo.{0,200}(connection (closed|reset) by peer|broken pipe)", _SEE_THE_OTHERS, is_consequence=True),
    Advice(r"ncclRemoteError|remote process exit(ed|ing) prematurely", _SEE_THE_OTHERS, is_consequence=True),
    Advice(r"NCCL communicator (was|is) aborted|ncclCommAbort", _SEE_THE_OTHERS, is_consequence=True),
    Advice(
        r"failed to recv, got 0 bytes|(TCPStore|DistNetworkError).{0,200}(connection reset|likely closed|broken pipe)",
        f"rank 0's store is gone; {_SEE_THE_OTHERS}",
        is_consequence=True,
    ),
    # A peer is late, and perhaps gone.
    Advice(
        r"watchdog caught collective operation timeout|timed out waiting \d+ ?ms for (recv|send) operation",
        "a collective waited for a worker that is stuck, far behind or gone: find the rank that took no part in it",
        is_consequence=True,
    ),
    Advice(
        r"DistStoreError.{0,200}(timed out|timeout)|timed out after \d+ seconds waiting for clients",
        "not every worker came to the meeting in time: find the rank that did not reach init_process_group",
        is_consequence=True,
    ),
    # Memory and disks.
    Advice(
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError",
        "the GPU's memory is full: a smaller batch, gradient checkpointing; nvidia-smi shows who else uses that GPU",
        blame="program",
        recurs="at_step",
    ),
    Advice(r"insufficient shared memory|(/dev/shm|/torch_\d).{0,200}no space left|no space left.*/dev/shm", MORE_SHM),
    Advice(r"DataLoader worker.{0,99}bus error", MORE_SHM),
    Advice(
        r"DataLoader worker.{0,99}(killed by signal: killed|exited unexpectedly)",
        "a data loader worker was killed, often for lack of memory: fewer of them, or a smaller prefetch_factor",
        blame="program",
    ),
    Advice(
        r"no space left on device|disk quota exceeded",
        "the disk is full: df -h, and df -i for its inodes",
        is_of_disk=True,
    ),
    Advice(r"Errno 27\]|OSError.{0,99}file too large|file size limit exceeded", RAISE_THE_LIMIT),
    Advice(
        r"cannot allocate memory|\bMemoryError\b",
        "the node's memory is full: a smaller batch, fewer data loader workers",
        blame="program",
    ),
    Advice(r"too many open files", "raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system')"),
    # GPUs and their network.
    Advice(
        r"uncorrectable (NVLink|ECC) error|GPU has fallen off the bus|CUDA error: system not yet initialized"
        r"|GPU is lost|unable to determine the device handle for GPU|nvidia-smi.{0,99}(timed out|timeout)",
        "this node's hardware has failed: drain it, and start the agent on another",
        blame="node",
    ),
    Advice(
        r"device-side assert triggered|illegal memory access",
        "run with CUDA_LAUNCH_BLOCKING=1 to see the kernel that failed; often an index or a label out of range",
    ),
    Advice(
        r"invalid device ordinal|no CUDA GPUs are available|no CUDA-capable device",
        "more workers than GPUs: compare --nproc with CUDA_VISIBLE_DEVICES and nvidia-smi",
    ),
    Advice(
        r"NCCL (error|WARN)|nccl(System|Internal|UnhandledCuda|InvalidUsage)Error",
        "run with NCCL_DEBUG=INFO; often the wrong network interface (NCCL_SOCKET_IFNAME) or two ranks on one GPU",
    ),
    Advice(
        r"gloo.{0,200}remote=\[(127\.|::1\])",
        "gloo has chosen a loopback address, which other nodes cannot reach: on every node set GLOO_SOCKET_IFNAME to "
        "the network interface that connects the nodes",
    ),
    # The script and its surroundings.
    Advice(
        r"address already in use|EADDRINUSE",
        "another process has that port: leave the choice to the agent, which reserves a fresh MASTER_PORT each round",
    ),
    Advice(
        r"unrecognized arguments:.{0,200}--local[-_]rank",
        "the script does not know --local-rank: read LOCAL_RANK from the environment, as under torchrun",
    ),
    Advice(
        r"\b(ModuleNotFoundError|ImportError)\b",
        "this node's Python lacks it: compare the interpreters and PYTHONPATH of the nodes",
        recurs="at_start",
    ),
    Advice(
        r"^(SyntaxError|IndentationError|TabError): ",
        "Python cannot read the script, or a module that it imports: the traceback's last line has the place",
        blame="program",
        recurs="at_start",
    ),
)
