"""What the status endpoint answers: the server and every run that it remembers."""

from typing import Any

import protocol
from rdzv_server.core.status import view
from rdzv_server.rendezvous import Rendezvous


def status(rendezvous: Rendezvous) -> dict[str, Any]:
    """The whole of it, ready for JSON. Durations are seconds."""
    now = rendezvous.now()
    return {
        "server": {
            "version": protocol.VERSION,
            "epoch": rendezvous.epoch,
            "ready": rendezvous.is_ready,
            "uptime_s": round(now - rendezvous.started_at, 3),
        },
        "runs": [view(run, now) for run in rendezvous.runs()],
    }
