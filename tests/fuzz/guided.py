"""`python -m tests.fuzz.guided`: the codec under libFuzzer, which looks for inputs that take new ways through it.

Needs `pip install atheris`. Flags are libFuzzer's: `-max_total_time=3600` for an hour. What makes it stop is left in
`crash-...`, and `python -m tests.fuzz.guided crash-...` repeats it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris
import msgpack

with atheris.instrument_imports(include=["protocol"]):
    from rdzv_protocol.codec import decode, encode
    from rdzv_protocol.messages import (
        Ack,
        ErrorReply,
        Finish,
        JoinRequest,
        LeaderReply,
        LeaderRequest,
        LeaveRequest,
        PollRequest,
        Reply,
        ReportRequest,
        Stop,
        Wait,
    )
from tests.fuzz.test_codec import take
from tests.support.messages import KINDS

RUN = {"run_id": "run", "agent_id": "agent"}
FAILURE = {"node_id": "n", "rank": 1, "local_rank": 0, "pid": 7, "exit_code": -9, "cause": "signal 9", "failed_at": 1.5}

SEEDS: list[Any] = [
    JoinRequest(**RUN, node_id="n", after_round=0, addr="10.0.0.1", port=29_500, local_world_size=8),
    PollRequest(**RUN, revision=7),
    LeaveRequest(**RUN, reason="SIGTERM"),
    Ack(epoch="epoch"),
    ErrorReply(code="agent_fenced", message="no longer part of the run", leader="h:1"),
    LeaderRequest(after=3),
    LeaderReply(leadership=4, leader="h:1"),
    Reply(epoch="epoch", revision=1, lease_s=10.0, directive=Wait(reason="waiting")),
    Reply(epoch="epoch", revision=1, lease_s=10.0, directive=Stop(round=1, reason="stop")),
    Reply(epoch="epoch", revision=1, lease_s=10.0, directive=Finish(succeeded=False, reason="failed")),
]


def take_any(data: bytes) -> None:
    """The first byte chooses the kind of message."""
    if data:
        take(KINDS[data[0] % len(KINDS)], data[1:])


def main() -> None:
    report = {**RUN, "round": 1, "failure": FAILURE}
    bodies = [(type(seed), encode(seed)) for seed in SEEDS] + [(ReportRequest, msgpack.packb(report))]
    with tempfile.TemporaryDirectory() as corpus:
        for number, (kind, body) in enumerate(bodies):
            assert decode(kind, body)
            Path(corpus, str(number)).write_bytes(bytes([KINDS.index(kind)]) + body)
        is_repeat = any(Path(flag).is_file() for flag in sys.argv[1:])
        atheris.Setup([*sys.argv, *([] if is_repeat else [corpus])], take_any)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
