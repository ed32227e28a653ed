"""Fields of the messages of an agent's features."""

from node_agent.features import words
from node_agent.features.checks import CHECKS
from node_agent.features.checks import words as checks
from node_agent.features.free_gpus import words as free_gpus
from node_agent.features.hangs import words as hangs
from node_agent.features.preemption import CLOUDS
from node_agent.features.preemption import words as preemption
from tests.golden.examples import Examples

EXAMPLES: Examples = {
    checks.not_a_check: [{"names": CHECKS, "given": "gpu"}],
    checks.wrong_number: [{"found": found, "expected": 8.0} for found in (7, 9)],
    checks.network_tested: [{"peer": "<peer>", "mb_per_s": 1180.0, "latency_s": each} for each in (0.00012, None)],
    free_gpus.holder: [
        {"pid": 71, "command": command, "mib": mib, "gpu": 0}
        for command, mib in (("python train.py", 8192), ("", None))
    ],
    free_gpus.not_free: [{"holders": ["<holder>"] * number, "limit_s": 30.0} for number in (1, 6)],
    hangs.may_hang: [{"ranks": each, "reason": "<reason>"} for each in ((3,), (0, 1, 2, 3))],
    hangs.not_a_rule: [{"line": "NaN"}],
    hangs.no_pattern: [{"line": "most=50", "how": "most=50"}],
    hangs.process_ended: [{"exit_code": -9}],
    preemption.not_a_cloud: [{"clouds": CLOUDS, "given": "ibm"}],
    words.earlier_workers_run: [{"pids": each} for each in ((71,), tuple(range(71, 80)))],
    words.left_behind: [{"pids": (71,)}],
    words.examined_workers: [{"reason": each, "result": "<result>"} for each in ("<reason>", "")],
    words.no_timer_request: [{"path": "<path>", "line": b"nonsense"}],
}
