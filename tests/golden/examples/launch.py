"""Examples of errors in a launch."""

from node_agent import words
from tests.golden.examples import Examples

_NESTED = {"run_id": "<run_id>", "address": "<address>", "rdzv_id": "<rdzv_id>", "alone": "<alone>"}
_NODE = {"rank": "<rank>", "rank_source": "<rank_source>", "nodes_source": "<nodes_source>"}

EXAMPLES: Examples = {
    words.api.wrong_ranks: [
        {"what": "<what>", "count": 3, "missing": [1, 2], "strange": ["<key>"]},
        {"what": "<what>", "count": 1, "missing": [0], "strange": []},
        {"what": "<what>", "count": 0, "missing": [], "strange": [0]},
    ],
    words.plan.no_logs_specs: [
        {"source": "<source>", "name": "<name>", "known": known} for known in (["<known 1>", "<known 2>"], [])
    ],
    words.plan.no_multiple: [
        {"source": "<source>", "unit": 4, "least": least, "most": 7, "nnodes": "<nnodes>"} for least in (5, 7)
    ],
    words.plan.own_run: [{**_NESTED, "inherited": each} for each in (["<inherited 1>", "<inherited 2>"], [])],
    words.rendezvous.ignored_without_static: [{"void": void} for void in (["<void>"], ["<void 1>", "<void 2>"])],
    words.rendezvous.no_node_rank: [
        {"nodes": nodes, "has_endpoint": has} for nodes, has in ((2, True), (2, False), (4, False))
    ],
    words.schedulers.node: [{**_NODE, "least": least, "most": 4} for least in (2, 4)],
    words.schedulers.server: [
        {"address": "<address>"},
        {"address": "<address>", "source": "<source>"},
        {"address": "<address>", "source": "<source>", "hosted_here": True},
    ],
    words.values.not_a_whole_number: [
        {"low": 1, "high": 5, "given": "<given>", "names": names} for names in ((), ("<name 1>", "<name 2>"))
    ],
}
