"""Fields of the messages about rounds, the run's end and workers that hang."""

from node_agent.features.hangs import words as hangs
from node_agent.words import leaving, progress
from tests.golden.examples import Examples

_PLACE = {"round_": 7, "group_rank": 1, "nodes": 3, "workers": 10, "master": "10.0.0.1:40007"}
EXAMPLES: Examples = {
    progress.round_started: [
        _PLACE | {"first_rank": 2, "last_rank": last_rank, "restarts": 3, "used": used, "most": 6}
        for last_rank, used in ((5, 3), (2, 1))
    ],
    progress.stopping_workers: [{"round_": 1, "reason": each} for each in ("<reason>", "")],
    progress.worker_failed: [
        {"rank": 3, "local_rank": 1, "pid": 77, "node_id": "<node_id>", "cause": "<cause>", "error": each}
        for each in ("<error>", "")
    ],
    progress.run_succeeded_after_restarts: [{"reason": "<reason>", "restarts": 5, "charged": 2}],
    progress.restarts_charged: [
        {"restarts": restarts, "charged": charged} for restarts, charged in ((1, 0), (1, 1), (5, 2))
    ],
    progress.run_took: [
        {"seconds": seconds, "ettr": ettr}
        for seconds, ettr in (
            ({"training": 90.0, "checkpointing": 0.0, "lost": 8.04, "restarting": 1.96}, 0.9),
            ({"training": 172_800.0, "checkpointing": 7_200.0, "forming": 150.0}, 0.96),
            ({"running": 0.04}, None),
            ({"running": 6.2, "detecting": 12.0, "restarting": 0.3, "forming": 0.04}, None),
        )
    ],
    leaving.rejoining: [{"reason": "<reason>", "slept_s": each} for each in (60.0, 0.0)],
    hangs.wrote_no_number: [{"value": "nan", "times": each} for each in (1, 2)],
}
