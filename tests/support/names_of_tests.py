"""A pytest plug-in: a test of an `xdist_group` has the same name in reports as when it runs alone.

pytest-xdist appends the group to the name, under which `--last-failed` finds no test: a failure would not run again.
"""

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the process that runs the test. The report keeps the long name until it is out of pytest-xdist's hands."""
    report = yield
    groups = sorted({str(marker.args[0]) for marker in item.iter_markers("xdist_group")})
    report.name = item.nodeid.removesuffix(f"@{'_'.join(groups)}")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that gathers what the others report."""
    if hasattr(report, "node") and hasattr(report, "name"):  # a process that dies reports no name
        report.nodeid = report.name
