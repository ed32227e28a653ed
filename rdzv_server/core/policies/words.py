"""Messages of the policies that are single files."""

WAS_SLOW = "it was slower than the other nodes"


def slow(node_id: str, is_own_work: bool, own_s: float, times: float, usual_s: float) -> str:
    """Return the sentence about a straggler. `is_own_work`: whether `own_s` is a step's own work, not a whole step."""
    what = "a step's own work" if is_own_work else "a step"
    return f"node {node_id} is slow: {what} takes {own_s:.3g} s, {times:.1f} times as long as usual ({usual_s:.3g} s)"


def resumed(step: int, repeated: int, kept: int, saved_step: int) -> str:
    """Return the sentence about the first progress of a new round. `saved_step`: the last checkpoint before it."""
    return (
        f"the workers continue after step {step}: they repeat {repeated} steps, and {kept} steps after the last "
        f"checkpoint (step {saved_step}) were kept"
    )


STEPS_FALL = (
    "the steps that workers report fall within a round, as if they were counted within each epoch. So they do not show "
    "whether restarts make progress: --max-restarts-without-progress judges by how long each round lasts"
)


def no_longer_slow(node_id: str) -> str:
    return f"node {node_id} is no longer slow"
