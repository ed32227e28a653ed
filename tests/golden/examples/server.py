"""Examples of the server's messages."""

from datetime import UTC, datetime

from rdzv_server.words import (
    admission,
    attempts,
    auth,
    cluster,
    costs,
    exports,
    failures,
    health,
    http,
    operations,
    runs,
    startup,
)
from tests.golden.examples import ByType, Examples

_PAGE = [{"origin": "https://evil.example"}]
_WAITS = ("", "<waits>")
_TAKEN = {"node_rank": 0, "run_id": "<run_id>", "node_id": "<node_id>"}
EXAMPLES: Examples = {
    admission.node_rank_taken: [
        {**_TAKEN, "last_rank": last, "is_same_node": is_same} for last, is_same in ((3, False), (3, True), (0, False))
    ],
    attempts.full_of_agents: [{"agents": agents, "most": agents} for agents in (1, 3)],
    attempts.full_of_runs: [{"most": most, "then": attempts.WHEN_ONE_HAS_ENDED} for most in (1, 3)],
    auth.foreign_session: _PAGE,
    cluster.leads: [{"shard": None, "runs": 1}, {"shard": 2, "runs": 3}],
    costs.drain: [{"own": 2, "others": others, "lost": "<lost>", "waits": w} for others in (0, 3) for w in _WAITS],
    costs.restart: [{"workers": 3, "lost": "<lost>", "waits": waits} for waits in _WAITS],
    exports.webhook_refuses: [{"status": 503, "reason": "Service Unavailable"}, {"status": 299, "reason": ""}],
    failures.no_restarts_left: [{"most": most, "within_s": s} for most, s in ((3, 12.0), (3, None), (0, None))],
    health.restart: [{"run_id": "<run_id>", "lacks": lacks} for lacks in (0, 1, 3)],
    http.foreign_login: _PAGE,
    http.foreign_logout: _PAGE,
    http.number_set_apart: [{"runs": 1}, {"runs": 3}],
    http.event_errors: [{"runs": 1}, {"runs": 3}],
    http.refused: [{"peer": "<peer>", "why": "<why>", "others": others} for others in (0, 3)],
    operations.forgotten: [
        {"run_id": "<run_id>", "in_s": in_s, "reason": reason} for in_s in (12.0, 0.0) for reason in ("", "<reason>")
    ],
    operations.drained: [{"node_id": "<node_id>", "reason": "<reason>", "waits": waits} for waits in _WAITS],
    runs.succeeded: [
        {"nodes": 3, "doubt": doubt, "more": more} for doubt, more in (("", 0), ("<doubt>", 0), ("<doubt>", 3))
    ],
    startup.state_in: [{"place": "<place>", "runs": runs} for runs in (0, 1, 3)],
    startup.status: [{"runs": runs} for runs in (0, 1, 3)],
    startup.no_passed_socket: [{"descriptor": 3, "why": "Bad file descriptor"}],
}
BY_TYPE: ByType = {datetime: (datetime(2030, 1, 2, 3, 4, tzinfo=UTC),)}
