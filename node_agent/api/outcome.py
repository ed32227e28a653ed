"""What a failed run is for the program that launched it."""

from rdzv_protocol.messages import Failure, Finish

from node_agent.api.errors import ChildFailedError, LaunchError, ProcessFailure, in_torchs_terms
from node_agent.api.evidence import process_failure
from node_agent.api.launched_agent import ApiDriver
from node_agent.failures.failure_report import local_time, paint
from node_agent.failures.report import report


def error(driver: ApiDriver, title: str) -> Exception:
    """Workers that failed, here or on another node, and what the run went through; else `LaunchError`."""
    evidence = driver.evidence
    if evidence is None:
        return LaunchError("this node has left the run")
    if evidence.finish is None or evidence.finish.failure is None:
        return LaunchError(evidence.finish.reason if evidence.finish else evidence.error)
    text = paint(report(evidence.finish, title, local_time), is_coloured=False).decode()
    failures = _failures(driver, evidence.finish, evidence.finish.failure)
    return in_torchs_terms(ChildFailedError)(title, failures, f"\n{text}")


def _failures(driver: ApiDriver, finish: Finish, root: Failure) -> dict[int, ProcessFailure]:
    """By global rank, the root first."""
    failures = {root.rank: process_failure(root, driver.recorded)}
    for failure in finish.others:
        if failure.rank not in failures:
            failures[failure.rank] = process_failure(failure)
    return failures
