"""Manifests as `kubectl kustomize` renders them, and their containers as a kubelet would start them."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.programs import PATIENCE_S, Program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
FOLDERS = sorted(
    str(path.parent.relative_to(FOLDER))
    for path in FOLDER.rglob("kustomization.yaml")
    if "\nkind: Kustomization\n" in path.read_text()
)
"""Folders that can be applied unchanged. Components cannot."""
SERVERS = ("server", "server-etcd")
RUNS = tuple(name for name in FOLDERS if name.startswith("runs/"))
OLDEST_KUBECTL = 1, 26
"""Oldest version of kubectl whose kustomize supports all that these folders use."""

Document = Mapping[str, Any]


@cache
def need_kubectl() -> None:
    """Skip the test if there is no kubectl that is new enough."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl: tests/install-debian-packages.sh")
    version = yaml.safe_load(subprocess.check_output(["kubectl", "version", "--client", "--output=yaml"]))
    major, minor = (int(re.sub(r"\D", "", version["clientVersion"][part])) for part in ("major", "minor"))
    if (major, minor) < OLDEST_KUBECTL:
        pytest.skip(f"needs kubectl {OLDEST_KUBECTL[0]}.{OLDEST_KUBECTL[1]}, not {major}.{minor}")


@cache
def render(folder: str | Path) -> tuple[Document, ...]:
    """Return the objects that `kubectl apply --kustomize` would send."""
    need_kubectl()
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER / folder)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def mine(folder: Path, base: str, component: str) -> Path:
    """Make a user's kustomization of a base with a component, in a new folder below this one."""
    shutil.copytree(FOLDER, folder / "kubernetes")
    made = folder / "kubernetes" / "mine"
    made.mkdir()
    (made / "kustomization.yaml").write_text(f"resources: [../{base}]\ncomponents: [../{component}]\n")
    return made


def only(documents: Sequence[Document], kind: str) -> Document:
    """Return the only object of this kind."""
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


class PodTemplate(NamedTuple):
    """Pod template of an object, with the object's Job if a Job makes the pods."""

    name: str
    template: Document
    job: Document | None = None
    """The Job's specification."""


def pod_templates(document: Document) -> Iterator[PodTemplate]:
    """Yield every pod template in an object of any kind."""
    spec, name = document.get("spec", {}), document["metadata"]["name"]
    match document["kind"]:
        case "Job":
            yield PodTemplate(name, spec["template"], spec)
        case "JobSet":
            yield from _replicated(spec)
        case "ClusterTrainingRuntime":
            yield from _replicated(spec["template"]["spec"])
        case "LeaderWorkerSet":
            yield PodTemplate(name, spec["leaderWorkerTemplate"]["workerTemplate"])
        case "Deployment" | "StatefulSet":
            yield PodTemplate(name, spec["template"])


def _replicated(spec: Document) -> Iterator[PodTemplate]:
    for each in spec["replicatedJobs"]:
        job = each["template"]["spec"]
        yield PodTemplate(each["name"], job["template"], job)


def template(folder: str | Path, name: str) -> PodTemplate:
    """Return the pod template of this name."""
    (found,) = (each for document in render(folder) for each in pod_templates(document) if each.name == name)
    return found


@dataclass
class Pod:
    """A pod whose only container runs as a process of this machine.

    `root`: has a folder for each of its volumes, replacing the container's own paths. `fields`: fields of the pod to
    which its variables refer. `environment`: variables that others have set in the container. `instead`: replacements
    for texts of the command that have a meaning only in a cluster. `args`: arguments before its own.
    """

    template: Document
    root: Path
    fields: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    args: Sequence[str] | None = None

    def __post_init__(self) -> None:
        (self.container,) = self.template["spec"]["containers"]
        for mount in self.container["volumeMounts"]:
            self.path(mount["mountPath"]).mkdir(parents=True, exist_ok=True)

    def path(self, path: str) -> Path:
        """Return the place on this machine of a path in the container."""
        return self.root / path.lstrip("/")

    @property
    def command(self) -> list[str]:
        """Return the command line, with variables expanded as in Kubernetes."""
        args = self.container.get("args", []) if self.args is None else self.args
        words = [*self.container["command"], *args]
        return [self._here(self._expanded(word, self.variables)) for word in words]

    @property
    def variables(self) -> dict[str, str]:
        """Return the container's environment."""
        found = dict(self.environment)
        for each in self.container.get("env", []):
            if "value" in each:
                found[each["name"]] = self._expanded(each["value"], found)
            else:
                found[each["name"]] = self.fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return found

    async def start(self, *through: str, **environment: str) -> Program:
        """Start the container. `through`: a command that executes it."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        return await Program.start(*through, *self.command, env={"PATH": path, **self.variables, **environment})

    async def exec(self, action: Document) -> int:
        """Carry out an exec action, a probe or a hook, as the kubelet does. Return its exit code."""
        program = await Program.start(*map(self._here, action["exec"]["command"]))
        return await program.exit_code()

    async def is_ready(self) -> bool:
        return await self.exec(self.container["readinessProbe"]) == 0

    async def becomes_ready(self) -> None:
        """Probe until the pod is ready, as the kubelet does. The agent's file appears a moment after its line."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.is_ready():
                pass

    @staticmethod
    def _expanded(text: str, variables: Mapping[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)

    def _here(self, text: str) -> str:
        for mount in self.container["volumeMounts"]:
            path = mount["mountPath"]
            text = re.sub(rf"(?<![\w/]){re.escape(path)}(?=/)", str(self.path(path)), text)
        for there, here in self.instead.items():
            text = text.replace(there, here)
        return text
