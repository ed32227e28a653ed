"""The current folder of every test has only a script, `train.py`."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = "train.py"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the tests that do not ask for one of their own: making a folder takes longer than most of them."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / SCRIPT).touch()
    return folder


@pytest.fixture(autouse=True)
def script(request: pytest.FixtureRequest, shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
        (folder / SCRIPT).touch()
        monkeypatch.chdir(folder)
        yield
        return
    monkeypatch.chdir(shared_folder)
    yield
    for made in {*os.listdir(shared_folder)} - {SCRIPT}:  # such as the folder of `--log-dir`
        shutil.rmtree(shared_folder / made)
