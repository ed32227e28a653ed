"""Examples of the policies' messages."""

from rdzv_protocol.evidence import ProcessState

from rdzv_server.core.policies.hangs import words as hangs
from rdzv_server.core.policies.network_check import words as network

PLACE = hangs.place("<operation>", "<file>", 88)

EXAMPLES = {
    network.unfit: [{"node_id": "<node_id>", "failed": [network.failed_with(f"<peer {n}>", "<why>") for n in (1, 2)]}],
    hangs.may_hang: [{"ranks": ranks, "node_id": "<node_id>", "reason": "<reason>"} for ranks in ([3], [3, 4])],
    hangs.hang: [{"reason": "<reason>", "evidence": evidence} for evidence in ("", "<evidence>")],
    hangs.operator_asks: [{"by": "<by>", "why": why} for why in ("", "<why>")],
    hangs.operator_examines: [{"rank": rank, "why": why} for rank, why in ((None, ""), (3, ""), (3, "<why>"))],
    hangs.ranks_at: [
        *({"ranks": range(n), "count": 8, "place": PLACE, "state": ProcessState.ALIVE} for n in (1, 2, 3, 4, 8)),
        *({"ranks": [3], "count": 8, "place": PLACE, "state": each} for each in ProcessState),
        {"ranks": [3], "count": 8, "place": "", "state": ProcessState.ALIVE, "wchan": "<wchan>"},
    ],
    hangs.no_answer_from: [{"ranks": [3], "count": 8, "node_id": "<node_id>", "more_nodes": n} for n in (0, 1, 2)],
    hangs.thread_ended: [
        {"rank": 3, "thread": "Thread-2 (load)", "error": "OSError: disk", "more_ranks": n} for n in (0, 1, 2)
    ],
    hangs.blame: [
        {"ranks": ranks, "why": why} for ranks in ([3], [3, 4]) for why in (hangs.LOWER_STEP, hangs.HAS_RAISED)
    ],
}
