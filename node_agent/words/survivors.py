"""Messages of `node_agent.saved_by_survivors`, in a worker's own stderr."""

MAIN_THREAD_ONLY = "node_agent.saved_by_survivors works only in the main thread, because it handles SIGTERM"


def saved(step: int, path: str, after_s: float) -> str:
    return f"node_agent: the round ended, and this worker saved the state after step {step} in {path} ({after_s:.1f} s)"


def not_saved(step: int, why: str) -> str:
    """For an error of the script's own function, after its traceback, or of the folder."""
    return f"node_agent: the round ended, and this worker could not save the state after step {step}: {why}"


def in_an_update(waited_s: float) -> str:
    return (
        "node_agent: the round ended, and this worker saves nothing: it is in the middle of an update that has not "
        f"ended within {waited_s:g} s"
    )


def too_slow(limit_s: float) -> str:
    return f"node_agent: the round ended, and saving the state takes longer than {limit_s:g} s: this worker ends now"
