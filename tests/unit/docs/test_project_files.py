"""Files that a project needs beside its code: each names what there is."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import rdzv_protocol
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.lazy_modules import need

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FOLLOW_TORCH = re.findall(r"^FOLLOW_TORCH := (.+)$", MAKEFILE, re.MULTILINE)[0].split()


def locked() -> dict[str, set[str]]:
    """Versions of each package that `make` installs; several if they differ by Python or platform."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition(" ;")[0].partition("==")
            found.setdefault(canonicalize_name(name), set()).add(version.strip())
    return found


def test_every_requirement_is_locked_at_a_version_that_it_allows() -> None:
    versions = locked()
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in map(Requirement, (text for group in groups for text in group)):
        name = canonicalize_name(requirement.name)
        if name not in ("rdzv-server", *FOLLOW_TORCH):
            assert versions.get(name), f"{name} is not in constraints.txt: run `make lock`"
            assert any(requirement.specifier.contains(each, prereleases=True) for each in versions[name]), name


def test_versions_that_torch_chooses_are_not_locked() -> None:
    assert set(FOLLOW_TORCH) & locked().keys() == set()
    assert [name for name in locked() if name.startswith(("nvidia-", "cuda-"))] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_existing_targets_with_pinned_actions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}, "more is for single jobs"
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["uses"] for step in steps if "uses" in step and not re.search("@[0-9a-f]{40}$", step["uses"])] == []
    commands = "\n".join(step["run"] for step in steps if "run" in step)
    assert [target for target in re.findall(r"^make ([\w-]+)", commands, re.M) if f"\n{target}:" not in MAKEFILE] == []
    assert [name for name in re.findall(r"bash (\S+)", commands) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("schema", "files"),
    {
        "github-workflows": ".github/workflows/*",
        "dependabot": ".github/dependabot.yml",
        "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*",
        "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
        "citation-file-format": "CITATION.cff",
    }.items(),
)
def test_a_file_is_what_its_readers_expect(schema: str, files: str) -> None:
    need("check_jsonschema")
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *ROOT.glob(files))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_no_workflow_has_a_known_weakness() -> None:
    if not (zizmor := shutil.which("zizmor", path=Path(sys.executable).parent)):
        pytest.skip("zizmor is not installed")
    command = (zizmor, "--offline", "--no-progress", "--quiet", ROOT / ".github")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_hooks_of_a_commit_are_checks_of_make() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        program, *rest = hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "").split()
        assert " ".join([f"\t$(BIN)/{program}", *rest]) in MAKEFILE, hook["id"]


def test_the_citation_names_this_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == PROJECT["license"]
    assert citation["version"] == rdzv_protocol.VERSION
    assert citation["title"].startswith(PROJECT["name"])


def test_python_versions_match_the_tested_ones() -> None:
    classified = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    (tested,) = re.findall(r"^VERSIONS = \((.+)\)$", (ROOT / "tests/distribution/test_packaging.py").read_text(), re.M)
    assert classified == re.findall(r"[\d.]+", tested)
