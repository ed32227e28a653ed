"""Messages of the agent about checks of its node."""

from collections.abc import Iterable


def not_a_check(names: Iterable[str], given: str) -> str:
    """For a wrong value of `--check`."""
    return f"expected names of checks ({', '.join(names)}), such as gpus or disk=20, not {given!r:.60}"


def needs_folder() -> str:
    return "storage needs folders, separated by colons, such as storage=/data:/checkpoints"


def nothing_to_check(source: str) -> str:
    """For `--check-only` without a check. `source`: the flag or variable."""
    return f"{source} has nothing to check: give --check or --pre-join-check"


def network_tested(peer: str, mb_per_s: float, latency_s: float | None) -> str:
    figures = f"{mb_per_s:.0f} MB/s" + (f", {latency_s * 1000:.2f} ms" if latency_s else "")
    return f"network test with node {peer}: {figures}"


def network_test_failed(peer: str, problem: str) -> str:
    return f"network test with node {peer}: {problem}"


def check_too_slow(limit_s: float) -> str:
    """From `--check-only`, like the next ones."""
    return f"node-agent: a check took more than {limit_s:g} s"


def check_broken(exit_code: int) -> str:
    return f"node-agent: a check is broken (exit code {exit_code}): it cannot tell whether this node is fit"


def verdict(node_id: str, is_unfit: bool) -> str:
    return f"node {node_id} is {'unfit: replace it' if is_unfit else 'fit'}"
