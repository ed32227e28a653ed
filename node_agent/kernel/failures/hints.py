"""Common errors: what to do about them, and whether they follow from another worker's failure.

A phrase marks a consequence only if a library that talks to peers uses it to say that a peer is gone or late.
"Connection reset by peer" is no such phrase: it may come from a data store that the script reads.
"""

import re
from collections.abc import Iterable

from msgspec import Struct
from rdzv_protocol.messages import Blame, Recurs

from node_agent import words

LONGEST_TEXT = 4_096


class Advice(Struct, frozen=True):
    """Advice on errors with a phrase.

    `phrase`: a regular expression, applied to one line or one message. Its gaps are bounded, because a script may write
    anything and must not keep the agent busy.
    """

    phrase: str
    hint: str
    is_consequence: bool = False
    blame: Blame = "unknown"
    """The cause of an error with this phrase: the program, the node, or unknown."""
    recurs: Recurs = "unknown"
    """Whether such an error recurs after a restart: `at_start` if the program fails at once again, `at_step` if it
    fails again at the same step."""
    is_of_disk: bool = False
    """Whether the error shows a full disk. The node is to blame if that disk is its own, not a shared one."""
    is_general: bool = False
    """Whether the phrase only names a library, or says what it did after an error. A line that says what was wrong then
    takes precedence, wherever it is."""


def find(texts: Iterable[str], *, consequences: bool = True) -> Advice | None:
    """Return the advice on the first text that matches a phrase. If several phrases match it, the first in the table
    counts.

    If that phrase is general, the first text with a phrase that is not general takes precedence. `consequences`:
    whether phrases of consequences count.
    """
    general: Advice | None = None
    for text in texts:
        for advice in TABLE:
            if (general and advice.is_general) or (advice.is_consequence and not consequences):
                continue
            if re.search(advice.phrase, text[:LONGEST_TEXT], re.IGNORECASE):
                if not advice.is_general:
                    return advice
                general = advice
    return general


TABLE = (
    # A peer is gone.
    Advice(
        r"failed to recv, got 0 bytes"
        r"|(TCPStore|DistNetworkError|SocketImpl|store->get).{0,300}(connection reset|likely closed|broken pipe)",
        words.hints.STORE_GONE,
        is_consequence=True,
    ),
    Advice(
        r"gloo.{0,200}(connection (closed|reset) by peer|broken pipe)", words.hints.SEE_THE_OTHERS, is_consequence=True
    ),
    Advice(
        r"ncclRemoteError|remote process exit(ed|ing) prematurely|remote process exited or there was a network error"
        r"|(NCCL|socketProgress|Call to (recv|send)).{0,200}(closed by remote peer|reset by peer|broken pipe)",
        words.hints.SEE_THE_OTHERS,
        is_consequence=True,
    ),
    Advice(
        r"NCCL communicator (was|is) aborted|ncclCommAbort",
        words.hints.SEE_THE_OTHERS,
        is_consequence=True,
        is_general=True,
    ),
    # A peer is late, and perhaps gone.
    Advice(
        r"watchdog caught collective operation timeout|timed out waiting \d+ ?ms for (recv|send) operation"
        r"|application timeout caused pair closure|(pass|reached|in) monitoredBarrier|reach monitoredBarrier"
        r"|dump signal (due to a collective timeout )?from (rank|another rank)",
        words.hints.COLLECTIVE_WAITED,
        is_consequence=True,
    ),
    Advice(
        r"(DistStoreError|store->get).{0,300}(timed out|timeout)|timed out after \d+ seconds waiting for clients",
        words.hints.WORKER_LATE,
        is_consequence=True,
    ),
    Advice(r"DistNetworkError.{0,300}gai error", words.hints.NAME_UNKNOWN),
    Advice(
        r"client socket has (timed out|failed to connect)|TCP client failed to connect/validate",
        words.hints.STORE_UNREACHABLE,
        is_consequence=True,
    ),
    Advice(
        r"gloo.{0,200}remote=\[(127\.|::1\])",
        words.hints.GLOO_LOOPBACK,
    ),
    # The path to a peer is broken: by a fault of either node, or of the network.
    Advice(
        r"(gloo|NCCL|socketProgress|socketPollConnect|socketStartConnect|Call to (recv|send)).{0,200}"
        r"(connection refused|connection timed out|no route to host|network is unreachable)"
        r"|NET/IB.{0,200}(status=12\b|RETRY_EXC_ERR)",
        words.hints.PATH_BROKEN,
        is_consequence=True,
    ),
    # Memory and disks.
    Advice(
        r"CUDA out of memory|(CUDA|HIP)( driver)? error: out of memory|HIP out of memory"
        r"|torch\.(cuda\.)?OutOfMemoryError|Cuda failure.{0,20}out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|failed to CUDA (m|c)alloc",
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
        r"DataLoader worker.{0,99}killed by signal: killed",
        words.hints.DATA_LOADER_KILLED,
        blame="program",
    ),
    Advice(
        r"DataLoader worker.{0,99}killed by signal: (segmentation|aborted|illegal|floating)",
        words.hints.DATA_LOADER_CRASHED,
    ),
    Advice(
        r"DataLoader worker.{0,99}exited unexpectedly",
        words.hints.DATA_LOADER_EXITED,
        blame="program",
        is_general=True,
    ),
    Advice(
        r"no space left on device|disk quota exceeded",
        words.hints.DISK_FULL,
        is_of_disk=True,
    ),
    Advice(r"Errno 27\]|OSError.{0,99}file too large|file size limit exceeded", words.output.RAISE_THE_LIMIT),
    Advice(
        r"Errno (5|30|107|108|116)\]|stale (NFS )?file handle|transport endpoint is not connected"
        r"|read-only file system",
        words.hints.STORAGE_FAILED,
    ),
    Advice(r"PytorchStreamWriter failed|inline_container.{0,99}unexpected pos", words.hints.NOT_WRITTEN),
    Advice(r"PytorchStreamReader failed", words.hints.CHECKPOINT_DAMAGED),
    Advice(
        r"cannot allocate memory|\b(_Array)?MemoryError\b",
        words.hints.NODE_MEMORY_FULL,
        blame="program",
    ),
    Advice(r"too many open files", words.hints.TOO_MANY_FILES),
    Advice(
        r"can't start new thread|BlockingIOError: \[Errno 11\]|\bcannot fork\b"
        r"|(could not start|fork|thread).{0,200}resource temporarily unavailable",
        words.hints.TOO_MANY_PROCESSES,
    ),
    # GPUs and their network.
    Advice(
        r"uncorrectable (NVLink|ECC) error|GPU has fallen off the bus|system not yet initialized"
        r"|GPU is lost|unable to determine the device handle for GPU|nvidia-smi.{0,99}(timed out|timeout)",
        words.hints.HARDWARE_FAILED,
        blame="node",
    ),
    Advice(
        r"device-side assert triggered|illegal memory access|misaligned address|unspecified launch failure",
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
    Advice(r"device\(s\) is/are busy or unavailable", words.hints.GPU_BUSY),
    Advice(r"NVIDIA driver on your system is too old|driver version is insufficient", words.hints.DRIVER_TOO_OLD),
    Advice(r"no kernel image is available", words.hints.OTHER_GPU),
    Advice(r"cannot re-initialize CUDA in forked subprocess", words.hints.CUDA_AFTER_FORK, blame="program"),
    Advice(
        r"CUDA (error: )?unknown error|peer GPU memory over nvlink or a hardware error|hardware stack error"
        r"|(CUBLAS|CUDNN|CUFFT|CUSOLVER)_STATUS_(INTERNAL_ERROR|EXECUTION_FAILED)",
        words.hints.SUSPECT_GPU,
    ),
    Advice(r"watchdog got stuck for \d+ seconds|heartbeat monitor timed out", words.hints.WATCHDOG_STUCK),
    Advice(r"^Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$", words.hints.OWN_TIMER, is_general=True),
    Advice(
        r"received data size doesn't match expected size|detected mismatch between collectives"
        r"|collectives differ in the following",
        words.hints.COLLECTIVES_DIFFER,
        blame="program",
    ),
    Advice(
        r"NCCL (error|WARN)|nccl(System|Internal|UnhandledCuda|InvalidUsage)Error",
        words.hints.NCCL_FAILED,
        is_general=True,
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
    Advice(r"cannot open shared object file|undefined symbol: ", words.hints.LIBRARY_MISSING, recurs="at_start"),
    Advice(r"\bImportError: cannot import name\b", words.hints.NAME_MISSING, recurs="at_start"),
    Advice(
        r"\b(ModuleNotFoundError|ImportError)\b|^No module named [\w.]+$",
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
