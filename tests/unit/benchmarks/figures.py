"""Rows as measurements produce them."""

from benchmarks.results import NEVER, Row

RECOVERY = "worker killed, 2 × 2"


def row(subject="node-agent", samples=(0.05,), **more):
    return Row(**{"measurement": RECOVERY, "unit": "s", "subject": subject, "samples": samples, **more})


def a_run():
    """Return rows of one measurement: ours meets its limit, torchrun is slow or never finishes."""
    return [
        row(samples=(0.04, 0.05, 0.07), bar=0.08),
        row("torchrun", (NEVER,), cap=60.0),
        row("torchrun, own store", (1.77,)),
        row("torchrun, etcd-v2", (), trouble="etcd is not on PATH", is_absent=True),
        row("floor: 4 bare workers", (0.03,)),
    ]


def a_swarm():
    return [
        row("256 nodes", (0.06,), measurement="swarm round", bar=0.1),
        row("10000 nodes", (2.4,), measurement="swarm round", bar=3.0),
        row("10000 nodes", (1.9,), measurement="swarm restart"),
        row("torchrun", (NEVER,), measurement="swarm round: 256 nodes", cap=60.0),
    ]
