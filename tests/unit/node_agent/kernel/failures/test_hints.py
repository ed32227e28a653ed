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
    ],
    words.hints.STORE_GONE: [
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "[c10d] sendBytes failed on TCPStore: Broken pipe",
    ],
    words.hints.COLLECTIVE_WAITED: [
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms",
        "RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
    ],
    words.hints.WORKER_LATE: [
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined."
    ],
}
"""Messages that follow from another worker's end, by the advice."""
CAUSES = {
    words.hints.GPU_MEMORY_FULL: [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB"
    ],
    words.hints.MORE_SHM: [
        "RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)",
        "ERROR: ... This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.",
    ],
    words.hints.DATA_LOADER_KILLED: [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly",
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
    ],
    words.hints.FIND_THE_KERNEL: ["torch.AcceleratorError: CUDA error: device-side assert triggered"],
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
    words.hints.MODULE_MISSING: ["ModuleNotFoundError: No module named 'apex'"],
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


def test_a_text_of_any_length_is_looked_at_in_no_time():
    assert hints.find(["gloo" * 1_000_000, "DistStoreError " * 100_000]) is None


@pytest.mark.parametrize(
    ("text", "recurs"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "at_step"),
        ("ModuleNotFoundError: No module named 'apex'", "at_start"),
        ("IndentationError: unexpected indent", "at_start"),
        ("OSError: [Errno 28] No space left on device", "unknown"),
        ("ValueError: SyntaxError: of a record", "unknown"),
    ],
)
def test_errors_that_recur_after_a_restart_are_recognized(text: str, recurs: str):
    advice = hints.find([text])
    assert (advice.recurs if advice else "unknown") == recurs
