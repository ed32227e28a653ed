"""A run that is set apart after an error in the server."""


def set_apart(run_id: str, error: str) -> str:
    """`error`: message `own_error`."""
    return (
        f"run {run_id} is set apart after {error}. Its workers keep running, but the server no longer "
        "decides anything about it. Report this with the server's log. To continue the run, start a fixed version of "
        "rdzv-server; or stop the run"
    )


def own_error(what: str, file: str = "", line: int = 0) -> str:
    """`what`: type and text of the exception. `file`: empty if unknown."""
    place = f" in {file}, line {line}" if file else ""
    return f"an error inside rdzv-server{place} ({what})"


def forgotten(run_id: str) -> str:
    """Answer to an operator who forgets the run before its end."""
    return f"run {run_id} is forgotten; its agents form it again"
