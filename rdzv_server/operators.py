"""What the status endpoint answers: the server and every run that it remembers."""

from typing import Any

import protocol
from rdzv_server.core.status import view
from rdzv_server.service import Service


def status(service: Service) -> dict[str, Any]:
    """The whole of it, ready for JSON. Durations are seconds."""
    now = service.now()
    return {
        "server": {
            "version": protocol.VERSION,
            "epoch": service.epoch,
            "ready": service.trouble is None,
            "trouble": service.trouble,
            "leads": service.leads,
            "leader": service.leader,
            "leadership": service.leadership,
            "uptime_s": round(now - service.started_at, 3),
        },
        "runs": [view(run, now) for run in service.runs()],
    }
