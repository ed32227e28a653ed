"""Steps that a person can take about everything that is wrong with a run."""

from collections.abc import Sequence

from rdzv_server.core.kernel.policy import Finding


def of_findings(found: Sequence[Finding]) -> list[str]:
    """Return the steps of the worst finding, then those of the other troubles, each step once."""
    worst = found[:1]
    return list(dict.fromkeys(step for each in found if each.is_trouble or each in worst for step in each.next))
