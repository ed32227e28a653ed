"""The archive of a bundle is complete or does not exist."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from rdzvctl import bundle
from rdzvctl.errors import BadInput


def test_an_archive_has_one_folder_without_the_name_of_a_user() -> None:
    with tarfile.open(fileobj=io.BytesIO(bundle.archive("b", {"README.md": "x", "logs/y": "z\ud800"}, 0))) as found:
        assert found.getnames() == ["b/README.md", "b/logs/y"]
        assert {(each.uid, each.uname, each.mode) for each in found} == {(0, "", 0o644)}


def test_a_bundle_is_readable_only_by_its_user_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    bundle._write(str(path), b"whole")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput):
        bundle._write(str(path), b"other")
    assert path.read_bytes() == b"whole"


def test_ctrl_c_while_it_is_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write of the data is interrupted when the file exists."""
    made: list[str] = []

    class Interrupted:
        def __init__(self, *_: object, **__: object) -> None:
            path.touch()
            made.append(str(path))

        def __enter__(self) -> "Interrupted":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, data: bytes) -> None:
            raise KeyboardInterrupt

    path = tmp_path / "b.tar.gz"
    monkeypatch.setattr("builtins.open", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        bundle._write(str(path), b"whole")
    assert made and not os.path.lexists(path)
