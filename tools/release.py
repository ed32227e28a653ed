"""Make the files of a release in a folder and check them there: `make release`.

The folder gets the wheel, the source distribution, SHA256SUMS and NOTES.md, the changelog of this version. Wheel and
source distribution are each installed into a clean environment, in which the three programs run.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^VERSION = "(.+)"', re.MULTILINE)
PLACEHOLDER = "github.com/OWNER/"
CHECK = (sys.executable, "-m", "tests.releases", "--check")
"""Says what the recording of this version lacks, with which later versions are compared."""
PROGRAMS = ("rdzv-server", "node-agent", "rdzvctl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="write to this folder (default: dist)")
    parser.add_argument("--tag", help="fail unless this is the tag of the version")
    parser.add_argument("--trial", action="store_true", help="say what is not ready, and make the files all the same")
    arguments = parser.parse_args()
    version = find(VERSION, ROOT / "protocol/rdzv_protocol/__init__.py")
    problems = problems_of(version, arguments.tag)
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems and not arguments.trial:
        sys.exit(1)
    shutil.rmtree(arguments.folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(arguments.folder.resolve()), cwd=ROOT)
    files = sorted(arguments.folder.glob("*"))
    for file in files:
        check(file, version)
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (arguments.folder / "SHA256SUMS").write_text("".join(sums))
    (arguments.folder / "NOTES.md").write_text(notes(version))
    print(f"release: {version} is in {arguments.folder}")


def problems_of(version: str, tag: str | None) -> list[str]:
    """Return what has to be done before this version can be released."""
    problems = []
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog(), re.MULTILINE):
        problems.append(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'")
    if PLACEHOLDER in (ROOT / "pyproject.toml").read_text():
        problems.append(f"pyproject.toml has the placeholder {PLACEHOLDER}: write the repository's address")
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        problems.append("the checkout has changes that are not committed")
    if recording := subprocess.run(CHECK, cwd=ROOT, capture_output=True, text=True, check=False).stderr.strip():
        problems.append(recording)
    if tag is not None and tag != f"v{version}":
        problems.append(f"the tag is {tag}, but the version is {version}")
    return problems


def check(file: Path, version: str) -> None:
    """Install a file into a clean environment, and run the programs there."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "bin"
        print(f"release: installing {file.name} into a clean environment")
        run(find_uv_bin(), "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder, cwd=folder)
        run(find_uv_bin(), "pip", "install", "--quiet", "--python", folder, str(file.resolve()), cwd=folder)
        for program in PROGRAMS:
            shown = run(str(programs / program), "--version", cwd=folder)
            assert shown.split() == [program, version], f"{program} --version: {shown}"
        ran = run(str(programs / "node-agent"), "--standalone", "--nproc=2", "--no-python", "echo", "works", cwd=folder)
        assert ran.count("works") == 2, ran


def notes(version: str) -> str:
    """Return the changelog of a version, without its heading."""
    (section,) = re.findall(rf"^## {re.escape(version)} .*?\n(.*?)(?=^## |\Z)", changelog(), re.MULTILINE | re.DOTALL)
    return f"{section.strip()}\n"


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text()


def find(pattern: re.Pattern[str], file: Path) -> str:
    (found,) = pattern.findall(file.read_text())
    return str(found)


def run(*command: str, cwd: Path | str) -> str:
    """Run a command to its end, and return its output; its errors are shown."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "PYTHONPATH"))}
    return subprocess.run(command, cwd=cwd, env=clean, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
