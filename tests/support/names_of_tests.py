"""A pytest plug-in for the names of tests: none is as long as an argument, and groups do not change names.

pytest-xdist appends the `xdist_group` of a test to its name. `--last-failed` then finds no test of that name, so a
failed test would not run again.
"""

from collections.abc import Generator

import pytest

LONGEST = 1_000
"""Length of the longest argument that is part of a test's name."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return a name for a long argument, None for any other. Each process sends all names to the first one."""
    return argname if isinstance(val, str | bytes) and len(val) > LONGEST else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the long name, in the process that runs the test, until pytest-xdist has sent the report."""
    report = yield
    groups = sorted({str(marker.args[0]) for marker in item.iter_markers("xdist_group")})
    report.name = item.nodeid.removesuffix(f"@{'_'.join(groups)}")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Restore the name in the process that collects all reports."""
    if hasattr(report, "node") and hasattr(report, "name"):  # a process that dies does not report a name
        report.nodeid = report.name
