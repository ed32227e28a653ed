"""A user who has no home folder: HOME is not set, and no line of /etc/passwd is about the user."""

import os
import pwd
from pathlib import Path

import pytest


def remove_home_folder(monkeypatch: pytest.MonkeyPatch, working_folder: Path) -> None:
    """Make this process, in this folder, one of such a user."""
    for name in ("HOME", "STATE_DIRECTORY", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.chdir(working_folder)
    assert os.path.expanduser("~") == "~"
