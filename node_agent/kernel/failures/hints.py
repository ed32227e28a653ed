"""Errors that many have met before: what to do about them, and whether another worker's end is behind them.

A phrase marks a consequence only where it says that a peer is gone or late, in the words of the library that talks to
peers: "Connection reset by peer" alone may as well be a data store that the script reads from.
"""

import re
from collections.abc import Iterable

from msgspec import Struct
from rdzv_protocol.messages import Blame, Recurs

from node_agent import words

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
    is_general: bool = False
    """Whether the phrase names a library alone: a line that says what was wrong counts for more, wherever it stands."""


def find(texts: Iterable[str]) -> Advice | None:
    """Advice on the first text that any phrase fits; of several phrases the first in the table.

    After a general one, the first text with a phrase that is neither general nor a consequence counts, if there is one.
    """
    general: Advice | None = None
    for text in texts:
        for advice in TABLE:
            if general and (advice.is_general or advice.is_consequence):
                continue
            if re.search(advice.phrase, text[:LONGEST_TEXT], re.IGNORECASE):
                if not advice.is_general:
                    return advice
                general = advice
    return general


TABLE = (
    # A peer is gone.
    Advice(
        r"gloo.{0,200}(connection (closed|reset) by peer|broken pipe)", words.hints.SEE_THE_OTHERS, is_consequence=True
    ),
    Advice(r"ncclRemoteError|remote process exit(ed|ing) prematurely", words.hints.SEE_THE_OTHERS, is_consequence=True),
    Advice(r"NCCL communicator (was|is) aborted|ncclCommAbort", words.hints.SEE_THE_OTHERS, is_consequence=True),
    Advice(
        r"failed to recv, got 0 bytes|(TCPStore|DistNetworkError).{0,200}(connection reset|likely closed|broken pipe)",
        words.hints.STORE_GONE,
        is_consequence=True,
    ),
    # A peer is late, and perhaps gone.
    Advice(
        r"watchdog caught collective operation timeout|timed out waiting \d+ ?ms for (recv|send) operation",
        words.hints.COLLECTIVE_WAITED,
        is_consequence=True,
    ),
    Advice(
        r"DistStoreError.{0,200}(timed out|timeout)|timed out after \d+ seconds waiting for clients",
        words.hints.WORKER_LATE,
        is_consequence=True,
    ),
    # Memory and disks.
    Advice(
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError",
        words.hints.GPU_MEMORY_FULL,
        blame="program",
        recurs="at_step",
    ),
    Advice(
        r"insufficient shared memory|(/dev/shm|/torch_\d).{0,200}no space left|no space left.*/dev/shm",
        words.hints.MORE_SHM,
    ),
    Advice(r"DataLoader worker.{0,99}bus error", words.hints.MORE_SHM),
    Advice(
        r"DataLoader worker.{0,99}(killed by signal: killed|exited unexpectedly)",
        words.hints.DATA_LOADER_KILLED,
        blame="program",
    ),
    Advice(
        r"no space left on device|disk quota exceeded",
        words.hints.DISK_FULL,
        is_of_disk=True,
    ),
    Advice(r"Errno 27\]|OSError.{0,99}file too large|file size limit exceeded", words.output.RAISE_THE_LIMIT),
    Advice(
        r"cannot allocate memory|\bMemoryError\b",
        words.hints.NODE_MEMORY_FULL,
        blame="program",
    ),
    Advice(r"too many open files", words.hints.TOO_MANY_FILES),
    # GPUs and their network.
    Advice(
        r"uncorrectable (NVLink|ECC) error|GPU has fallen off the bus|CUDA error: system not yet initialized"
        r"|GPU is lost|unable to determine the device handle for GPU|nvidia-smi.{0,99}(timed out|timeout)",
        words.hints.HARDWARE_FAILED,
        blame="node",
    ),
    Advice(
        r"device-side assert triggered|illegal memory access",
        words.hints.FIND_THE_KERNEL,
    ),
    Advice(
        r"invalid device ordinal|no CUDA GPUs are available|no CUDA-capable device",
        words.hints.FEWER_GPUS,
    ),
    Advice(
        r"duplicate GPU detected",
        words.hints.ONE_GPU_EACH,
    ),
    Advice(
        r"NCCL (error|WARN)|nccl(System|Internal|UnhandledCuda|InvalidUsage)Error",
        words.hints.NCCL_FAILED,
        is_general=True,
    ),
    Advice(
        r"gloo.{0,200}remote=\[(127\.|::1\])",
        words.hints.GLOO_LOOPBACK,
    ),
    # The script and its surroundings.
    Advice(
        r"address already in use|EADDRINUSE",
        words.hints.PORT_TAKEN,
    ),
    Advice(
        r"unrecognized arguments:.{0,200}--local[-_]rank",
        words.hints.NO_LOCAL_RANK_FLAG,
    ),
    Advice(
        r"\b(ModuleNotFoundError|ImportError)\b",
        words.hints.MODULE_MISSING,
        recurs="at_start",
    ),
    Advice(
        r"^(SyntaxError|IndentationError|TabError): ",
        words.hints.SYNTAX_ERROR,
        blame="program",
        recurs="at_start",
    ),
)
