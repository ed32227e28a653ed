"""A pytest plug-in: the suite's exit code distinguishes tests that failed from tests that never ran.

When one of pytest-xdist's processes dies, the tests after it never run, and pytest exits with 1 as if some had failed.
"""

from typing import Any

import pytest

DIED = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    if error:
        node.config.stash[DIED] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(DIED, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
