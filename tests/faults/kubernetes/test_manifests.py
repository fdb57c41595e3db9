"""The manifests of examples/kubernetes are valid and consistent. These tests need no cluster."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from functools import cache

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from celery_rlock.server.url import parse
from tests.faults.kubernetes.manifests import FOLDERS, ROOT, render

#: The oldest and the newest Kubernetes that the manifests are checked against.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]
PODMONITOR = {"selector", "podMetricsEndpoints"}


@pytest.fixture(params=FOLDERS)
def documents(request):
    return render(request.param)


def of_kind(documents, *kinds):
    return {document["metadata"]["name"]: document for document in documents if document["kind"] in kinds}


def workloads(documents):
    return of_kind(documents, "Deployment", "StatefulSet")


def pods(documents):
    return {name: workload["spec"]["template"]["spec"] for name, workload in workloads(documents).items()}


def containers(documents):
    return {
        f"{name}/{container['name']}": container
        for name, pod in pods(documents).items()
        for container in [*pod["containers"], *pod.get("initContainers", [])]
    }


def labels(documents):
    return {
        name: workload["spec"]["template"]["metadata"]["labels"]
        for name, workload in workloads(documents).items()
    }


def selected(documents, selector):
    """The workloads whose pods a selector matches; an empty selector matches all."""
    wanted = selector.get("matchLabels", selector).items()
    return {name for name, own in labels(documents).items() if wanted <= own.items()}


@cache
def secrets():
    script = subprocess.run([ROOT / "new-secret"], check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(script.stdout))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid_for_the_kubernetes_api(documents, version):
    for document in documents:
        if document["kind"] != "PodMonitor":
            kubernetes_validate.validate(document, version, strict=True)
    for document in secrets():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_validation_finds_a_misspelt_field(documents):
    worker = of_kind(documents, "Deployment")["worker"]
    worker["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSIONS[-1], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine")
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_renders_the_same_documents(folder):
    """kubectl gets no cluster, so it works offline."""
    env = {**os.environ, "KUBECONFIG": os.devnull}
    done = subprocess.run(
        ["kubectl", "kustomize", ROOT / folder], env=env, check=True, capture_output=True, text=True
    )
    name = lambda document: (document["kind"], document["metadata"]["name"])  # noqa: E731
    assert sorted(yaml.safe_load_all(done.stdout), key=name) == sorted(render(folder), key=name)


def test_the_pod_monitor_scrapes_a_port_of_the_exporter(documents):
    """The Prometheus operator defines this kind, not the API, so the test lists the fields."""
    monitor = of_kind(documents, "PodMonitor")["exporter"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == PODMONITOR
    assert selected(documents, monitor["spec"]["selector"]) == {"exporter"}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert set(endpoint) == {"port", "path", "interval"}
    assert endpoint["port"] in [port["name"] for port in containers(documents)["exporter/exporter"]["ports"]]


def test_selectors_match_the_right_pods(documents):
    for name, workload in workloads(documents).items():
        assert selected(documents, workload["spec"]["selector"]) == {name}
    assert selected(documents, of_kind(documents, "Service")["valkey"]["spec"]["selector"]) == {"valkey"}
    assert selected(documents, of_kind(documents, "PodDisruptionBudget")["worker"]["spec"]["selector"]) == {
        "worker"
    }
    policies = of_kind(documents, "NetworkPolicy")
    matched = {name: selected(documents, policy["spec"]["podSelector"]) for name, policy in policies.items()}
    proj = {"worker", "beat", "exporter"}
    assert matched == {
        "deny": {*proj, "valkey"},
        "valkey": {"valkey"},
        "proj": proj,
        "exporter": {"exporter"},
    }


def test_only_the_autoscaler_sets_the_number_of_workers(documents):
    target = of_kind(documents, "HorizontalPodAutoscaler")["worker"]["spec"]["scaleTargetRef"]
    worker = of_kind(documents, target["kind"])[target["name"]]
    assert "replicas" not in worker["spec"]
    assert containers(documents)["worker/worker"]["resources"]["requests"]["cpu"]


def test_everything_is_in_one_namespace(documents):
    for document in [*documents, *secrets()]:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "celery"


def test_config_maps_secrets_and_accounts_of_pods_exist(documents):
    maps = {name: set(document["data"]) for name, document in of_kind(documents, "ConfigMap").items()}
    keys = {document["metadata"]["name"]: set(document["stringData"]) for document in secrets()}
    for pod in pods(documents).values():
        assert pod["serviceAccountName"] in of_kind(documents, "ServiceAccount")
        for volume in pod.get("volumes", []):
            assert volume.get("configMap", {"name": "settings"})["name"] in maps
            assert volume.get("secret", {"secretName": "passwords"})["secretName"] in keys
    for container in containers(documents).values():
        for source in container.get("envFrom", []):
            assert source["configMapRef"]["name"] in maps
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference["key"] in keys[reference["name"]]


def test_named_ports_exist(documents):
    for container in containers(documents).values():
        names = [port["name"] for port in container.get("ports", [])]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "tcpSocket" in container.get(probe, {}):
                assert container[probe]["tcpSocket"]["port"] in names
    everywhere = {port["name"] for each in containers(documents).values() for port in each.get("ports", [])}
    for policy in of_kind(documents, "NetworkPolicy").values():
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= everywhere


def test_every_volume_exists_and_is_mounted(documents):
    for name, workload in workloads(documents).items():
        pod = workload["spec"]["template"]["spec"]
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        there = {*claims, *(volume["name"] for volume in pod.get("volumes", []))}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == there, name


def test_every_container_has_least_privileges_and_limits(documents):
    for pod in pods(documents).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
    for container in containers(documents).values():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert container["resources"]["limits"]["memory"]


def test_every_image_has_a_version(documents):
    images = [container["image"] for container in containers(documents).values()]
    images += re.findall(r"^FROM (\S+:\S+|\S+@\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 6
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image


def test_the_image_is_made_of_what_was_pinned():
    """The base image by its digest, and every package by its version and hash, which fit pyproject.toml."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert bases == ["python:3.13.5-slim-bookworm@${PYTHON_DIGEST}"] * 2
    assert not re.search(r"^ARG PYTHON_DIGEST=", dockerfile, re.MULTILINE)
    commands = dockerfile.replace("\\\n", " ")
    for install in re.findall(r"pip (?:install|wheel) [^&\n]*", commands):
        assert "--require-hashes" in install or "--no-index" in install, install
    for name in ("requirements.txt", "requirements-build.txt"):
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for line in text.splitlines()[1:]:
            assert re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", line), line
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    project = (ROOT.parents[1] / "pyproject.toml").read_text()
    needed = re.findall(r"^(?:dependencies|metrics) = (\[.*\])", project, re.MULTILINE)
    assert len(needed) == 2
    for requirement in (Requirement(text) for texts in needed for text in ast.literal_eval(texts)):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_a_worker_ends_before_its_pod_is_killed(documents):
    """Warm shutdown: time limits end every run in time. Soft shutdown: the worker gives runs back in time."""
    settings = of_kind(documents, "ConfigMap")["settings"]["data"]
    pod = pods(documents)["worker"]
    names = ("TASK_SOFT_TIME_LIMIT", "TASK_TIME_LIMIT", "SOFT_SHUTDOWN_TIMEOUT", "VISIBILITY_TIMEOUT")
    soft, hard, shutdown, visibility = (float(settings[name]) for name in names)
    remapped = {"name": "REMAP_SIGTERM", "value": "SIGQUIT"} in pod["containers"][0]["env"]
    assert remapped == (shutdown > 0)
    assert (hard == 0) == remapped
    assert soft <= hard
    assert hard + shutdown + 10 < pod["terminationGracePeriodSeconds"] < visibility


def test_every_variable_that_the_app_reads_is_set_and_every_set_one_is_read(documents):
    source = "".join(path.read_text() for path in (ROOT / "proj").glob("*.py"))
    read = set(re.findall(r'"([A-Z]+_[A-Z_]+)"', source))
    settings = set(of_kind(documents, "ConfigMap")["settings"]["data"])
    read_by_celery_and_python = {"REMAP_SIGTERM", "TMPDIR"}
    for name in ("worker", "beat", "exporter"):
        env = {variable["name"] for variable in containers(documents)[f"{name}/{name}"]["env"]}
        assert read - {"ALIVE_FILE"} <= settings | env
        assert settings | env <= read | read_by_celery_and_python
        assert "TMPDIR" in env
    for name in ("worker", "beat"):
        env = {each["name"]: each.get("value") for each in containers(documents)[f"{name}/{name}"]["env"]}
        assert env["ALIVE_FILE"] == "/run/celery/alive"


@pytest.mark.parametrize(
    ("folder", "kind", "replicas"),
    [
        ("base", "standalone", 0),
        ("overlays/long-tasks", "standalone", 0),
        ("overlays/sentinel", "sentinel", 1),
        ("overlays/cluster", "cluster", 1),
    ],
)
def test_the_lock_can_use_its_url(folder, kind, replicas):
    settings = of_kind(render(folder), "ConfigMap")["settings"]["data"]
    target = parse(settings["RLOCK_URL"].replace("{user}", settings["RLOCK_USER"]))
    assert target.kind == kind
    assert target.options["username"] == "locks"
    assert "password" not in target.options  # it is in the Secret, and in rlock_password
    assert len(target.nodes) == (1 if kind == "standalone" else 3)
    assert target.master_name == ("mymaster" if kind == "sentinel" else "")
    assert int(settings["RLOCK_REPLICAS"]) == replicas


def test_the_network_policy_lets_the_app_reach_its_servers(documents):
    settings = of_kind(documents, "ConfigMap")["settings"]["data"]
    wanted = {port for name in ("MESSAGES_URL", "RLOCK_URL") for _, port in parse(settings[name]).nodes}
    rules = of_kind(documents, "NetworkPolicy")["proj"]["spec"]["egress"]
    assert wanted <= {port["port"] for rule in rules for port in rule["ports"]}


def test_no_password_is_committed():
    for path in ROOT.rglob("*"):
        if path.is_file() and path.suffix in {".yaml", ".acl", ".md", ".py", ""}:
            assert not re.search(r"\b[0-9a-f]{32,}\b", path.read_text()), path
