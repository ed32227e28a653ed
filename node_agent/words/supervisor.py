"""Messages of an agent's supervisor (`--exit-with-run`)."""


def agent_killed(signal_name: str) -> str:
    return f"the agent was killed ({signal_name})"


def agent_killed_run_awaited(signal_name: str, run_id: str) -> str:
    return f"{agent_killed(signal_name)}; waiting for the end of run {run_id}, which may continue without it"


def has_left(run_id: str) -> str:
    return f"rdzv-server did not hear from any agent of run {run_id}, so this supervisor has left the run for its agent"


def run_has_ended(run_id: str, phase: str) -> str:
    return f"run {run_id} has {phase}"


def run_unknown(run_id: str, within_s: float) -> str:
    return f"for {within_s:g} s, no server has known run {run_id}: its outcome is unknown"


def attempt_forgotten(run_id: str, attempt: int) -> str:
    return f"run {run_id} has started again: the outcome of attempt {attempt} is unknown"
