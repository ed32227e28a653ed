"""Schemas of Kubernetes objects: what its API servers would refuse, or accept without the intended effect."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from rdzv_protocol import paths
from rdzv_protocol.exit_codes import ExitCode

from node_agent.features.tell_scheduler import scheduler
from node_agent.kernel.runner import CRASH_MARGIN_S
from tests.kubernetes_manifests.manifests import (
    FOLDER,
    FOLDERS,
    ROOT,
    RUNS,
    SERVERS,
    Document,
    mine,
    only,
    pod_templates,
    render,
)

pytestmark = pytest.mark.xdist_group("kubernetes schemas")

OLDEST, NEWEST = "1.31.0", "1.37.0"
"""Versions of Kubernetes whose schemas the objects must satisfy."""
MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
"""Models by kind, which Kubeflow Trainer's authors generate from their own and from JobSet's OpenAPI documents."""
SCHEMAS = {
    ("cert-manager.io/v1", "Certificate"): "certificate-spec",
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leader-worker-set-spec",
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "service-monitor-spec",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheus-rule-spec",
}
"""Files in `schemas/` by API version and kind: schema of the specification, with its source. No package has them."""


def without(document: Any, more: Any, path: str = "") -> list[str]:
    """Return the paths of `document` that `more` lacks, or has with another value."""
    if isinstance(document, Mapping) and isinstance(more, Mapping):
        return [line for key in document for line in without(document[key], more.get(key), f"{path}.{key}")]
    if isinstance(document, list) and isinstance(more, list) and len(document) == len(more):
        return [line for n, each in enumerate(document) for line in without(each, more[n], f"{path}[{n}]")]
    return [] if document == more else [path]


def check(document: Document) -> None:
    """Raise unless the object's schema allows it, and every field of it is known."""
    if model_name := MODELS.get(document["kind"]):
        from kubeflow_trainer_api import models  # takes half a second, and only one process of the tests needs it

        model = getattr(models, model_name)
        assert without(document, model.from_dict(dict(document)).to_dict()) == [], "fields that the model does not know"
    elif name := SCHEMAS.get((document["apiVersion"], document["kind"])):
        schema = json.loads((Path(__file__).parent / "schemas" / f"{name}.json").read_text())
        jsonschema.validate(document["spec"], closed(schema))
    else:
        check_core(document)
        return
    for _, template, job in pod_templates(document):
        spec = job or {"template": {**template, "spec": {"restartPolicy": "Never", **template["spec"]}}}
        check_core({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec})


def closed(schema: Any) -> Any:
    """Return the schema without undescribed fields in objects."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    return {**found, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else found


def check_core(document: Document) -> None:
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(dict(document), version, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_what_its_schema_allows(folder: str) -> None:
    for document in render(folder):
        check(document)


FIELDS = ("restartPolicy", "readinessProbe", "size", "onExitCodes", "replicatedJobs", "runtimeRef", "clusterIP")
REFUSALS = (AssertionError, ValueError, jsonschema.ValidationError, kubernetes_validate.ValidationError)


@pytest.mark.parametrize("folder", RUNS)
def test_a_misspelled_field_is_noticed(folder: str) -> None:
    """The check above can fail: at the top, and inside of the pods."""
    for document in render(folder):
        text = yaml.safe_dump(document)
        for name in FIELDS:
            if re.search(rf"\b{name}:", text):
                with pytest.raises(REFUSALS):
                    check(yaml.safe_load(re.sub(rf"\b{name}:", f"{name}s:", text)))


@pytest.mark.parametrize("folder", SERVERS)
def test_the_component_for_tls_fits_either_server(folder: str, tmp_path: Path) -> None:
    documents = render(mine(tmp_path, folder, "tls"))
    for document in documents:
        check(document)
    certificate = only(documents, "Certificate")["spec"]
    ((_, template, _),) = (each for document in documents for each in pod_templates(document))
    (container,) = template["spec"]["containers"]
    mounted = {volume["secret"]["secretName"] for volume in template["spec"]["volumes"] if "secret" in volume}
    assert certificate["secretName"] in mounted
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("readiness", "liveness", "startup")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}


@pytest.mark.parametrize("folder", SERVERS)
def test_the_component_for_metrics_fits_either_server(folder: str, tmp_path: Path) -> None:
    documents = render(mine(tmp_path, folder, "monitoring"))
    for document in documents:
        check(document)
    monitor, policy = only(documents, "ServiceMonitor")["spec"], only(documents, "NetworkPolicy")["spec"]
    ((_, template, _),) = (each for document in documents for each in pod_templates(document))
    (service,) = (
        document
        for document in documents
        if document["kind"] == "Service" and selects(monitor["selector"]["matchLabels"], document["metadata"]["labels"])
    )  # one only, otherwise every server would be scraped and counted twice
    assert selects(service["spec"]["selector"], template["metadata"]["labels"])
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "rdzv-server"  # the alert for a lost server names it
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == paths.METRICS and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    agents, scrapers = policy["ingress"]
    assert agents["ports"] == scrapers["ports"]
    assert selects(scrapers["from"][0]["podSelector"]["matchLabels"], {"app.kubernetes.io/name": "prometheus"})


def test_the_alerts_match_the_tested_ones(tmp_path: Path) -> None:
    rules = only(render(mine(tmp_path, "server", "monitoring")), "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    for name in ("alert", "expr", "annotations"):
        with pytest.raises(jsonschema.ValidationError):
            wrong = json.loads(json.dumps(rules).replace(f'"{name}"', f'"{name}s"'))
            check({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "spec": wrong})


# Checks that no schema makes.


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


@pytest.mark.parametrize("folder", SERVERS)
def test_services_budgets_and_policies_select_the_servers_pods_and_admit_every_run(folder: str) -> None:
    documents = render(folder)
    ((_, template, _),) = (each for document in documents for each in pod_templates(document))
    labels = template["metadata"]["labels"]
    for document in documents:
        spec = document["spec"]
        match document["kind"]:
            case "Service":
                assert selects(spec["selector"], labels)
            case "PodDisruptionBudget" | "Deployment" | "StatefulSet":
                assert selects(spec["selector"]["matchLabels"], labels)
            case "NetworkPolicy":
                assert selects(spec["podSelector"]["matchLabels"], labels)
                (allowed,) = spec["ingress"][0]["from"]
                for run in RUNS:
                    for name, pod, _ in (each for document in render(run) for each in pod_templates(document)):
                        let_in = selects(
                            allowed["podSelector"]["matchLabels"], pod.get("metadata", {}).get("labels", {})
                        )
                        assert let_in == (name != "server")


@pytest.mark.parametrize("folder", FOLDERS)
def test_containers_have_only_the_rights_that_they_need(folder: str) -> None:
    for document in render(folder):
        for name, template, _ in pod_templates(document):
            spec = template["spec"]
            assert spec["automountServiceAccountToken"] is False, name
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
            for container in spec["containers"]:
                rights = container["securityContext"]
                assert rights["allowPrivilegeEscalation"] is False and rights["capabilities"]["drop"] == ["ALL"]
                if container["name"] == "rdzv-server":
                    assert rights["readOnlyRootFilesystem"] is True


def test_restarting_in_place_is_a_component_for_the_job(tmp_path: Path) -> None:
    job = only(render(mine(tmp_path, "runs/indexed-job", "restart-in-place")), "Job")
    kubernetes_validate.validate(dict(job), NEWEST, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (rule,) = container["restartPolicyRules"]
    (failing,) = (each for each in job["spec"]["podFailurePolicy"]["rules"] if each["action"] == "FailJob")
    assert not set(rule["exitCodes"]["values"]) & set(failing["onExitCodes"]["values"])


def test_telling_the_scheduler_is_a_component_whose_token_may_patch_the_job_only(tmp_path: Path) -> None:
    documents = render(mine(tmp_path, "runs/indexed-job", "tell-scheduler"))
    for document in documents:
        kubernetes_validate.validate(dict(document), NEWEST, strict=True)
    job, role = only(documents, "Job"), only(documents, "Role")
    pod = job["spec"]["template"]["spec"]
    account = only(documents, "ServiceAccount")["metadata"]["name"]
    assert pod["serviceAccountName"] == account and pod["automountServiceAccountToken"] is True
    (rule,) = role["rules"]
    assert rule == {
        "apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [job["metadata"]["name"]], "verbs": ["patch"]
    }  # fmt: skip
    binding = only(documents, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"] and binding["subjects"][0]["name"] == account
    (container,) = pod["containers"]
    (name,) = (each for each in container["env"] if each["name"] == "JOB_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/job-name']"
    assert scheduler(container["command"][-1].partition("=")[2].replace("$(JOB_NAME)", "train"))[1:] == ("job", "train")


ACTIONS = {
    "FailJob": {ExitCode.FAILED, ExitCode.BAD_INPUT, ExitCode.NO_PROGRESS, ExitCode.REFUSED},
    "Ignore": {ExitCode.NODE_UNFIT, ExitCode.START_AGAIN},
}


@pytest.mark.parametrize("folder", RUNS)
def test_jobs_know_every_exit_code(folder: str) -> None:
    for name, _, job in (each for document in render(folder) for each in pod_templates(document)):
        if job and name != "server":
            rules = [rule for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
            assert {rule["action"]: set(rule["onExitCodes"]["values"]) for rule in rules} == ACTIONS
            assert {rule["onExitCodes"]["operator"] for rule in rules} == {"In"}
    assert set().union(*ACTIONS.values(), {ExitCode.SUCCEEDED}) == set(ExitCode)


def test_the_pages_commands_make_every_secret_that_is_asked_for(tmp_path: Path) -> None:
    """kubectl itself makes each secret from the files in the flags, without a cluster."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text().replace("`kubectl\ncreate", "`kubectl create")
    first, *more = re.findall(r"^for role .*|^kubectl create secret .*|(?<=`)kubectl create secret [^`]*", page, re.M)
    script = "\n".join([first, *(f"{command} --dry-run=client --output=yaml; echo ---" for command in more)])
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    made = {each["metadata"]["name"]: set(each["data"]) for each in yaml.safe_load_all(done.stdout) if each}
    asked = {
        name: {key for flag in flags(container) for key in re.findall(rf"token-file={mount}/(\w+)", flag)}
        for folder in FOLDERS
        for document in render(folder)
        for _, template, _ in pod_templates(document)
        for container in template["spec"]["containers"]
        for mount, name in secrets(template, container).items()
    }
    monitor = only(render(mine(tmp_path, "server", "monitoring")), "ServiceMonitor")["spec"]
    token = monitor["endpoints"][0]["authorization"]["credentials"]
    assert made == asked | {token["name"]: {token["key"]}}


def flags(container: Document) -> list[str]:
    return [*container["command"], *container.get("args", [])]


def secrets(template: Document, container: Document) -> dict[str, str]:
    """Return the names of the secrets that a container sees, by place."""
    volumes = {each["name"]: each["secret"]["secretName"] for each in template["spec"]["volumes"] if "secret" in each}
    mounts = ((each["mountPath"], each["name"]) for each in container["volumeMounts"])
    return {path: volumes[name] for path, name in mounts if name in volumes}


PAGES = [*ROOT.joinpath("docs").rglob("*.md"), *ROOT.joinpath("deploy").rglob("*.md"), *FOLDER.rglob("*.yaml")]


def test_every_manifest_folder_exists_and_is_documented() -> None:
    applied = {
        name
        for page in PAGES
        for name in re.findall(r"kubectl apply --kustomize deploy/kubernetes/([\w/-]+)", page.read_text())
    }
    assert applied == set(FOLDERS)


@pytest.mark.parametrize("folder", RUNS)
def test_pods_outlive_the_grace_that_their_workers_have(folder: str) -> None:
    """Time remains, after the workers' end, for the agent's last message to the server and for the pod's stop hook."""
    for document in render(folder):
        for name, template, _ in pod_templates(document):
            if name != "server":
                (container,) = template["spec"]["containers"]
                (flag,) = (
                    word
                    for word in [*container["command"], *container.get("args", [])]
                    if word.startswith("--shutdown-timeout=")
                )
                needs_s = float(flag.partition("=")[2]) + CRASH_MARGIN_S
                assert template["spec"]["terminationGracePeriodSeconds"] >= needs_s + 10, name
