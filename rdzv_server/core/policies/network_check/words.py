"""Messages about the network test of a round's nodes."""

from collections.abc import Sequence

from rdzv_protocol.text import NextStep, count

UNDER_TEST = "testing the network between the nodes"


def tested(nodes: int, took_s: float, between: str, mb_per_s: float, latency_ms: float) -> str:
    """Return the result of a test. `between`: the two nodes of the slowest pair that passed."""
    figures = f"{mb_per_s:.0f} MB/s, {latency_ms:.2f} ms"
    return f"{_tested(nodes, took_s)}; slowest pair that passed: {between} ({figures})"


def none_passed(nodes: int, took_s: float) -> str:
    return f"{_tested(nodes, took_s)}: no pair passed"


def no_answer(node_id: str, limit_s: float) -> str:
    return f"node {node_id} did not answer within {limit_s:g} s"


def unfit(node_id: str, failed: Sequence[str]) -> str:
    """Return the evidence against a node, with its condition (`rdzv_protocol.node_conditions`).

    `failed`: each of its failed tests, from `failed_with`.
    """
    return f"node {node_id} is unfit: its network test failed {'; and '.join(failed)} (NetworkBroken, permanent)"


def failed_with(peer: str, why: str) -> str:
    return f"with node {peer}: {why}"


def undecided(nodes: str, why: str) -> str:
    return (
        f"the network test failed between {nodes} ({why}), but it does not show which node is at fault: "
        "they stay in the run"
    )


def broken_path(one: str, other: str, why: str) -> str:
    return f"the network test failed between {one} and {other} ({why}); each has passed with another node"


# The state of health.


def unreachable(one: str, other: str, problem: str, more: int) -> str:
    """`more`: number of other broken links."""
    others = f"; {count(more, 'more link')} failed, too" if more else ""
    return f"the network test failed between {one} and {other}: {problem}{others}"


def restart_tests_network(run_id: str) -> NextStep:
    return NextStep(
        "If the workers hang, restart them, which also tests the network again:", f"rdzvctl restart {run_id}"
    )


MEND_LINK = (
    "Let these nodes reach each other at every free port (net.ipv4.ip_local_port_range): look for a firewall, "
    "then for a bad link."
)


def _tested(nodes: int, took_s: float) -> str:
    return f"tested the network between {nodes} node{'s' * (nodes != 1)}, in pairs, in {took_s:.1f} s"
