"""Advice on errors that many have met before. The messages are real ones, cut to what matters."""

import pytest

from node_agent.failures import hints

CONSEQUENCES = {
    "failed first": [
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    ],
    "rank 0's store is gone": [
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "[c10d] sendBytes failed on TCPStore: Broken pipe",
    ],
    "took no part": [
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms",
        "RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
    ],
    "init_process_group": [
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined."
    ],
}
"""Messages with another worker's end behind them, by a word of the advice."""
CAUSES = {
    "the GPU's memory is full": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB"
    ],
    "/dev/shm": [
        "RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)",
        "ERROR: ... This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.",
    ],
    "data loader worker was killed": [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly",
    ],
    "df -h": ["OSError: [Errno 28] No space left on device: '/data/ckpt.pt'"],
    "ulimit -f": ["OSError: [Errno 27] File too large: '/data/ckpt.pt'", "File size limit exceeded (core dumped)"],
    "node's memory is full": ["OSError: [Errno 12] Cannot allocate memory", "MemoryError"],
    "ulimit -n": ["OSError: [Errno 24] Too many open files: '/data/part-7'"],
    "on another": [
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.",
        "RuntimeError: CUDA error: system not yet initialized",
    ],
    "CUDA_LAUNCH_BLOCKING": ["torch.AcceleratorError: CUDA error: device-side assert triggered"],
    "--nproc": ["RuntimeError: CUDA error: invalid device ordinal", "RuntimeError: No CUDA GPUs are available"],
    "NCCL_SOCKET_IFNAME": [
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:94, unhandled system error"
    ],
    "GLOO_SOCKET_IFNAME": [
        "RuntimeError: Gloo connectFullMesh failed with [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
        "pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:30083$1",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[::1]:30083$1",
    ],
    "MASTER_PORT": [
        "RuntimeError: The server socket has failed to listen: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ],
    "LOCAL_RANK": ["train.py: error: unrecognized arguments: --local-rank=1"],
    "cannot read the script": ["SyntaxError: '(' was never closed", "IndentationError: unexpected indent"],
    "interpreters": ["ModuleNotFoundError: No module named 'apex'"],
}
"""Messages of a worker's own error."""
MESSAGES = [
    (message, word, table is CONSEQUENCES)
    for table in (CONSEQUENCES, CAUSES)
    for word, messages in table.items()
    for message in messages
]


@pytest.mark.parametrize(("message", "word", "is_consequence"), MESSAGES)
def test_advice_on_a_message(message, word, is_consequence):
    advice = hints.find(["Traceback (most recent call last):", message])
    assert advice is not None
    assert word in advice.hint
    assert advice.is_consequence is is_consequence


def test_every_phrase_is_tried_here():
    assert {hints.find([message]) for message, *_ in MESSAGES} == set(hints.TABLE)


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: boom",
        "",
        "ConnectionResetError: [Errno 104] Connection reset by peer",  # a data store's, as far as anybody knows
        "BrokenPipeError: [Errno 32] Broken pipe",
        "TimeoutError: timed out",
    ],
)
def test_no_advice_where_nothing_is_certain(message):
    assert hints.find([message]) is None


def test_the_first_text_that_fits_counts():
    advice = hints.find(["CUDA out of memory", "ncclRemoteError"])
    assert advice is not None and not advice.is_consequence


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
def test_errors_that_a_restart_does_not_cure(text: str, recurs: str):
    advice = hints.find([text])
    assert (advice.recurs if advice else "unknown") == recurs
