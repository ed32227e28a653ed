"""The current folder of every test has only a script, `train.py`."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
