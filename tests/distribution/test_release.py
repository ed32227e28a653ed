"""`make release`: the files of a release, made and checked; and what keeps a checkout from being released."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import rdzv_protocol

from tools import release

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_a_trial_release_makes_files_checksums_and_notes(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    command = [sys.executable, "tools/release.py", "--trial", "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    wheel, source = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    assert [len(wheel), len(source)] == [1, 1]
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (*wheel, *source)}
    notes = (folder / "NOTES.md").read_text()
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text() and "## " not in notes.replace("### ", "")


def test_a_checkout_that_is_not_ready_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    version = rdzv_protocol.VERSION
    monkeypatch.setattr(release, "changelog", lambda: f"# Changelog\n\n## {version} (unreleased)\n")
    problems = "\n".join(release.problems_of(version, "v0.0.0"))
    assert f"no heading '## {version} (YYYY-MM-DD)'" in problems
    assert "the tag is v0.0.0" in problems
    monkeypatch.setattr(release, "changelog", lambda: f"# Changelog\n\n## {version} (2026-12-01)\n")
    problems = "\n".join(release.problems_of(version, f"v{version}"))
    assert "heading" not in problems and "the tag" not in problems
