"""Examples of messages of the server's core."""

from collections.abc import Mapping, Sequence

from rdzv_server.words import completion, finishing, losses, operations, sizes
from tests.golden.examples import Examples

_LIMITS: Sequence[Mapping[str, int]] = (
    {"min_nodes": 2, "max_nodes": 4}, {"min_nodes": 3, "max_nodes": 3}, {"min_nodes": 1, "max_nodes": 1},
)  # fmt: skip
EXAMPLES: Examples = {
    completion.names: [{"node_ids": ("a", "b"), "number": 2}, {"node_ids": tuple("abcdef"), "number": 6}],
    completion.joined: [{"nodes": 2, "names": "a, b"}, {"nodes": 0, "names": ""}],
    completion.all_unfit: [{"evidence": tuple("abcdef"), "number": 6}],
    completion.refused: [{"why": {"a": "<why>"}}, {"why": dict.fromkeys("abcdef", "<why>")}],
    completion.all_joined: [{"nodes": 3}, {"nodes": 1}],
    completion.too_few: [
        {"missing": 1, "nodes": 0, "low": 1, "names": ""},
        {
            "missing": 3,
            "nodes": 2,
            "low": 5,
            "names": "a, b",
            "sizes": "<sizes>",
            "to_stop": "<to_stop>",
            "gone": "d, e",
            "cordoned": "c",
            "excluded": "f",
            "refused": "<refused>",
            "unfit": "<unfit>",
        },
    ],
    completion.last_call: [
        {"joined": "<joined>", "low": low, "high": 4, "sizes": sizes, "awaits": "<awaits>"}
        for low, sizes in ((2, ""), (2, "<sizes>"), (4, ""))
    ],
    completion.standby_full: [{"round_": 1, "nodes": 2}, {"round_": 1, "nodes": 2, "sizes": "<sizes>"}],
    completion.too_few_fit: [{"fit": fit, "fixed_nodes": 3, "low": 2, "unfit": "<unfit>"} for fit in (1, 0)],
    completion.running: [
        {"round_": 1, "nodes": 2},
        {"round_": 1, "nodes": 2, "of": 3, "sizes": "<sizes>", "also": ("<also>",)},
    ],
    operations.cordoned: [
        {"node_id": "b", "for_s": for_s, "reason": reason, "waits": waits}
        for for_s, reason, waits in ((None, "", ""), (90.0, "", ""), (600.0, "why", "<waits>"))
    ],
    finishing.on_nodes: [{"workers": ("rank 0 on node a", "rank 1 on node b"), "more_nodes": more} for more in (0, 3)],
    losses.excused: [{"cause": "<cause>", "excuse": "<excuse>"}],
    sizes.legal_sizes: [{"sizes": (2, 4)}],
    sizes.legal_steps: [{"first": 2, "second": 4, "last": 64}],
    operations.has_size: [{"run_id": "<run_id>", **limits} for limits in _LIMITS],
    operations.resized: [{"reason": "<reason>", **limits} for limits in _LIMITS],
    sizes.none_legal: [
        {"sizes": sizes, "node_unit": 4, "min_nodes": least, "max_nodes": 7}
        for sizes, least in (((), 5), ((4, 8), 5), ((), 7))
    ],
}
