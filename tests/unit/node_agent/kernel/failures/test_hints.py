"""Advice on common errors. The messages are real ones, shortened."""

import pytest

from node_agent import words
from node_agent.kernel.failures import hints

LOST = "has fallen off"
"""Words of NVIDIA's driver, similar to one of our own sentences."""
CONSEQUENCES = {
    words.hints.SEE_THE_OTHERS: [
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:275, remote process exited or there "
        "was a network error, NCCL version 2.21.5",
        "n7:77:150 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n8<42830>",
        "socketProgress: Connection closed by remote peer n8<42830>",
        "n7:77:150 [1] misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.8<4990> failed : Broken "
        "pipe",
        "Net : Call to recv from 10.0.0.8<58355> failed : Connection reset by peer",
    ],
    words.hints.STORE_GONE: [
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "[c10d] sendBytes failed on TCPStore: Broken pipe",
        "[c10d] recvValue failed on SocketImpl(fd=3, addr=[n1]:1, remote=[n0]:2): Connection reset by peer",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    ],
    words.hints.COLLECTIVE_WAITED: [
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms",
        "RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
        "RuntimeError: [gloo/transport/tcp/pair.cc:589] Application timeout caused pair closure",
        "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms",
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for rank 0.",
        "[Rank 3] Received a dump signal due to a collective timeout from rank 5 and we will try our best to dump",
        "[Rank 2] Observed flight recorder dump signal from another rank via TCPStore.",
    ],
    words.hints.WORKER_LATE: [
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /0//0",
    ],
    words.hints.STORE_UNREACHABLE: [
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(10.0.0.1, 29500).",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n0, "
        "2950). The client socket has failed to connect to 10.0.0.1:2950 (errno: 111 - Connection refused).",
    ],
    words.hints.PATH_BROKEN: [
        "RuntimeError: [gloo/transport/tcp/pair.cc:589] Read error [10.0.0.2]:32104: Connection timed out",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[10.0.0.7]:30083",
        "socketPollConnect: connect to 10.0.0.2<50935> returned Connection refused, exceeded error retry count (35)",
        "n7:77:150 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<5093> failed : No route to "
        "host",
        "n7:77:150 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<36592> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv)",
    ],
}
"""Messages that follow from another worker's end, by the advice."""
CAUSES = {
    words.hints.GPU_MEMORY_FULL: [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB",
        "RuntimeError: CUDA driver error: out of memory",
        "Cuda failure 2 'out of memory'",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
    words.hints.MORE_SHM: [
        "RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)",
        "ERROR: ... This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.",
    ],
    words.hints.DATA_LOADER_KILLED: [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
    ],
    words.hints.DATA_LOADER_CRASHED: [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Segmentation fault."
    ],
    words.hints.DATA_LOADER_EXITED: ["RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly"],
    words.hints.STORAGE_FAILED: [
        "OSError: [Errno 116] Stale file handle: '/data/x'",
        "OSError: [Errno 5] Input/output error: '/data/ckpt'",
        "OSError: [Errno 30] Read-only file system: '/data/x'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/data'",
    ],
    words.hints.NOT_WRITTEN: [
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0",
        "RuntimeError: [enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writing file data/0",
    ],
    words.hints.CHECKPOINT_DAMAGED: [
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    ],
    words.hints.TOO_MANY_PROCESSES: [
        "RuntimeError: can't start new thread",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        words.workers.cannot_start("train.py", "Resource temporarily unavailable"),
        "bash: fork: retry: Resource temporarily unavailable",
        "run.sh: 7: Cannot fork",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
    ],
    words.hints.DISK_FULL: ["OSError: [Errno 28] No space left on device: '/data/ckpt.pt'"],
    words.output.RAISE_THE_LIMIT: [
        "OSError: [Errno 27] File too large: '/data/ckpt.pt'",
        "File size limit exceeded (core dumped)",
    ],
    words.hints.NODE_MEMORY_FULL: [
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array",
    ],
    words.hints.TOO_MANY_FILES: ["OSError: [Errno 24] Too many open files: '/data/part-7'"],
    words.hints.HARDWARE_FAILED: [
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        f"NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU {LOST} the bus.",
        "RuntimeError: CUDA error: system not yet initialized",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ],
    words.hints.FIND_THE_KERNEL: [
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "torch.AcceleratorError: CUDA error: misaligned address",
    ],
    words.hints.SUSPECT_GPU: [
        "torch.AcceleratorError: CUDA error: unknown error",
        "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    ],
    words.hints.GPU_BUSY: ["RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"],
    words.hints.DRIVER_TOO_OLD: ["RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."],
    words.hints.OTHER_GPU: ["RuntimeError: CUDA error: no kernel image is available for execution on the device"],
    words.hints.CUDA_AFTER_FORK: ["RuntimeError: Cannot re-initialize CUDA in forked subprocess."],
    words.hints.WATCHDOG_STUCK: [
        "[PG 0 (default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        "[PG 0 (default_pg) Rank 3] Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
    ],
    words.hints.OWN_TIMER: ["Timeout (0:10:00)!", "Timeout (0:00:00.500000)!"],
    words.hints.COLLECTIVES_DIFFER: [
        "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size "
        "doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE",
    ],
    words.hints.FEWER_GPUS: [
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: No CUDA GPUs are available",
    ],
    words.hints.ONE_GPU_EACH: [
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:93, invalid usage\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
    ],
    words.hints.NCCL_FAILED: [
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:94, unhandled system error"
    ],
    words.hints.NAME_UNKNOWN: [
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n0, "
        "1). The IPv4 network addresses of (n0, 1) cannot be retrieved (gai error: -2 - Name or service not known)."
    ],
    words.hints.GLOO_LOOPBACK: [
        "RuntimeError: Gloo connectFullMesh failed with [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
        "pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:30083$1",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[::1]:30083$1",
    ],
    words.hints.PORT_TAKEN: [
        "RuntimeError: The server socket has failed to listen: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ],
    words.hints.NO_LOCAL_RANK_FLAG: ["train.py: error: unrecognized arguments: --local-rank=1"],
    words.hints.SYNTAX_ERROR: ["SyntaxError: '(' was never closed", "IndentationError: unexpected indent"],
    words.hints.LIBRARY_MISSING: [
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: /site/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ],
    words.hints.NAME_MISSING: ["ImportError: cannot import name 'Cache' from 'transformers' (/site/__init__.py)"],
    words.hints.MODULE_MISSING: ["ModuleNotFoundError: No module named 'apex'", "No module named apex.train"],
}
"""Messages of a worker's own error."""
MESSAGES = [
    (message, hint, table is CONSEQUENCES)
    for table in (CONSEQUENCES, CAUSES)
    for hint, messages in table.items()
    for message in messages
]


@pytest.mark.parametrize(("message", "hint", "is_consequence"), MESSAGES)
def test_advice_on_a_message(message, hint, is_consequence):
    advice = hints.find(["Traceback (most recent call last):", message])
    assert advice is not None
    assert advice.hint == hint
    assert advice.is_consequence is is_consequence


def test_every_phrase_is_tried_here():
    assert {hints.find([message]) for message, *_ in MESSAGES} == set(hints.TABLE)


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: boom",
        "",
        "ConnectionResetError: [Errno 104] Connection reset by peer",  # perhaps a data store's
        "BrokenPipeError: [Errno 32] Broken pipe",
        "TimeoutError: timed out",
        "asyncssh.misc.ConnectionLost: Connection closed by remote peer",  # perhaps a data store's
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))",
    ],
)
def test_an_uncertain_failure_gets_no_advice(message):
    assert hints.find([message]) is None


def test_the_first_matching_text_decides_the_hint():
    advice = hints.find(["CUDA out of memory", "ncclRemoteError"])
    assert advice is not None and not advice.is_consequence


def test_an_error_line_counts_more_than_a_library_name():
    general = "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:93, invalid usage"
    nobody, particular = hints.find([general]), hints.find([general, "Duplicate GPU detected : rank 1 and rank 0 both"])
    assert nobody is not None and nobody.hint == words.hints.NCCL_FAILED
    assert particular is not None and particular.hint == words.hints.ONE_GPU_EACH
    assert hints.find([general, "NCCL communicator was aborted"]) is nobody


def test_the_reason_that_nccl_gives_counts_more_than_its_error():
    general = "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:93, unhandled system error"
    advice = hints.find([general, "socketProgress: Connection closed by remote peer n8<42830>", "Last error:"])
    assert advice is not None and advice.is_consequence
    gpu = hints.find([general, "Cuda failure 'uncorrectable ECC error encountered'", "Last error:"])
    assert gpu is not None and gpu.blame == "node" and not gpu.is_consequence


def test_a_text_of_any_length_is_examined_quickly():
    assert hints.find(["gloo" * 1_000_000, "DistStoreError " * 100_000]) is None


@pytest.mark.parametrize(
    ("text", "recurs"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "at_step"),
        ("ModuleNotFoundError: No module named 'apex'", "at_start"),
        ("No module named apex.train", "at_start"),
        ("No module named json.__main__; 'json' is a package and cannot be directly executed", "unknown"),
        ("IndentationError: unexpected indent", "at_start"),
        ("OSError: [Errno 28] No space left on device", "unknown"),
        ("ValueError: SyntaxError: of a record", "unknown"),
    ],
)
def test_errors_that_recur_after_a_restart_are_recognized(text: str, recurs: str):
    advice = hints.find([text])
    assert (advice.recurs if advice else "unknown") == recurs
