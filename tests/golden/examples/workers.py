"""Fields of the messages about workers and about a node's checks."""

from node_agent.features.checks import words as checks
from node_agent.words import output, workers

EXAMPLES = {
    output.wrong_local_ranks: [{"name": "stdouts", "found": found, "expected": [0, 1]} for found in ([0], [])],
    checks.clock_wrong: [{"ahead_s": 7.0}, {"ahead_s": -7.0}],
    checks.classified: [{"text": "<text>", "condition": each} for each in checks.CONDITIONS],
    checks.link_slow: [{"link": "mlx5_0/1", "gbit_s": each, "expected_gbit_s": 400.0} for each in (200.0, None)],
    checks.xid: [{"number": number, "gpu": "0000:3b:00"} for number in checks.HARDWARE_XIDS],
    workers.no_port: [{"port": 0, "why": "Address already in use"}, {"port": 29500, "why": "Address already in use"}],
    workers.killed_late: [
        {"ranks": ranks, "signal_name": "SIGTERM", "within_s": 2.0, "limit": limit}
        for ranks, limit in (([3], "--shutdown-timeout"), ([*range(4), 7], "shutdown_timeout"), (range(0, 40, 2), ""))
    ],
    workers.left_behind: [{"number": each} for each in (1, 2)],
    workers.in_state: [{"state": state, "place": place} for state, place in (("D", "nfs_wait"), ("Z", ""), ("R", ""))],
}
