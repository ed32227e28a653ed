"""A pytest plug-in: the state of servers in a temporary folder, a new one for each test.

Without `--store` a server keeps its runs under its port in the user's home. A later server with that port, of another
test or of the user, would continue these runs.
"""

import os
from itertools import count
from tempfile import TemporaryDirectory

import pytest

NAME = "XDG_STATE_HOME"
FOLDER = pytest.StashKey[str]()
_numbers = count()


def pytest_configure(config: pytest.Config) -> None:
    """Make one folder for pytest and the processes of pytest-xdist, which inherit the variable."""
    if worker := getattr(config, "workerinput", None):
        config.stash[FOLDER] = os.path.join(os.environ[NAME], worker["workerid"])
        return
    folder = TemporaryDirectory(prefix="state-of-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    config.stash[FOLDER] = os.environ[NAME] = folder.name


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which start servers
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Name a folder that only a server makes."""
    os.environ[NAME] = os.path.join(item.config.stash[FOLDER], str(next(_numbers)))
