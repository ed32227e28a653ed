"""A pytest plug-in: a test of an `xdist_group` has the same name in reports as when it runs by itself.

pytest-xdist appends the group to the name. `--last-failed` then finds no test of that name, so a failed test would not
run again.
"""

from collections.abc import Generator

import pytest


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
    if hasattr(report, "node") and hasattr(report, "name"):  # a process that dies reports no name
        report.nodeid = report.name
