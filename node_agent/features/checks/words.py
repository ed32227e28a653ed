"""What a person is told of the checks of a node by its agent."""

from collections.abc import Iterable


def not_a_check(names: Iterable[str], given: str) -> str:
    """Refuses a value of `--check`."""
    return f"expected names of checks ({', '.join(names)}), such as gpus or disk=20, not {given!r:.60}"


def nothing_to_check(source: str) -> str:
    """Refuses `--check-only`, which `source` names."""
    return f"{source} has nothing to check: give --check or --pre-join-check"


def network_tested(peer: str, mb_per_s: float, latency_s: float | None) -> str:
    figures = f"{mb_per_s:.0f} MB/s" + (f", {latency_s * 1000:.2f} ms" if latency_s else "")
    return f"network test with node {peer}: {figures}"


def network_test_failed(peer: str, problem: str) -> str:
    return f"network test with node {peer}: {problem}"


def check_too_slow(limit_s: float) -> str:
    """Told by `--check-only`, as the next ones are."""
    return f"node-agent: a check took more than {limit_s:g} s"


def check_broken(exit_code: int) -> str:
    return f"node-agent: a check is broken (exit code {exit_code}): it cannot tell whether this node is fit"


def verdict(node_id: str, is_unfit: bool) -> str:
    return f"node {node_id} is {'unfit: replace it' if is_unfit else 'fit'}"
