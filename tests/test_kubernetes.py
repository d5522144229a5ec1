"""The manifests of docker/kubernetes, held against Kubernetes' own schemas, and against what they say of us."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from relaxc.service.cli.app import app
from relaxc.service.config import Settings

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docker" / "kubernetes"
VERSIONS = ("1.33", "1.35", "1.37")
"""Since 1.33 an unmasked /proc and user namespaces need no switch."""

KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object, by kind and name."""
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for each in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield f"{each['kind']}/{each['metadata']['name']}", each


ALL = dict(manifests())
PODS = {name: each["spec"]["template"]["spec"] for name, each in ALL.items() if each["kind"] == "Deployment"}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}


@pytest.mark.parametrize("name", ALL)
def test_kubernetes_takes_it(name: str) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(ALL[name], version, strict=True)


def test_what_is_wrong_is_seen() -> None:
    wrong = {**ALL["Deployment/relaxc-server"], "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_all_files_are_applied_with_our_images() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == sorted(
        path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    images = {each["name"]: each["newTag"] for each in KUSTOMIZATION["images"]}
    assert images == dict.fromkeys({container["image"] for container in CONTAINERS.values()}, version)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_rights_and_what_a_sandbox_needs(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]
    held, own = pod["securityContext"], container["securityContext"]
    assert (held["runAsNonRoot"], held["runAsUser"], pod["automountServiceAccountToken"]) == (True, 10001, False)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
    assert held["seccompProfile"] == {"type": "Localhost", "localhostProfile": "relaxc.json"}
    assert (own["procMount"], pod["hostUsers"]) == ("Unmasked", False)
    assert "hostNetwork" not in pod and "hostPID" not in pod
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/var/lib/relaxc", "/tmp"}
    assert all("emptyDir" in volume for volume in pod["volumes"])


@pytest.mark.parametrize("name", PODS)
def test_a_command_is_one_of_ours(name: str) -> None:
    program, verb, *options = CONTAINERS[name]["args"]
    assert program == "relaxc"
    command: Any = get_command(app).commands[verb]  # type: ignore[attr-defined]  # the group of all verbs
    command.make_context(verb, options)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_time_to_drain_and_no_more_than_it_asks_for(name: str) -> None:
    drain_s = float(ALL["ConfigMap/relaxc"]["data"]["RELAXC_DRAIN_S"])
    assert PODS[name]["terminationGracePeriodSeconds"] >= drain_s + 20
    asked, most = CONTAINERS[name]["resources"]["requests"], CONTAINERS[name]["resources"]["limits"]
    assert {"memory", "ephemeral-storage"} <= most.keys() and {"cpu", *most} <= {"cpu", *asked}
    if "tuner" in name:
        assert isinstance(asked["cpu"], int) and (asked["cpu"], asked["memory"]) == (most["cpu"], most["memory"])


def test_every_setting_is_one_of_ours() -> None:
    known = {f"RELAXC_{name.upper()}" for name in Settings.model_fields}
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml"))
    assert set(re.findall(r"RELAXC_\w+", text)) <= known
    values = {name.removeprefix("RELAXC_").lower(): value for name, value in ALL["ConfigMap/relaxc"]["data"].items()}
    Settings(**values)


def test_a_server_is_asked_what_it_answers() -> None:
    from relaxc.service.api.app import create_app

    paths = set(create_app().openapi()["paths"])
    container, service = CONTAINERS["Deployment/relaxc-server"], ALL["Service/relaxc"]["spec"]
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["httpGet"]["path"] for probe in probes} <= paths
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": int(container["args"][container["args"].index("--port") + 1])}
    assert {probe["httpGet"]["port"] for probe in probes} == {service["ports"][0]["targetPort"]} == set(ports)
    assert service["sessionAffinity"] == "ClientIP"
    assert ALL["NetworkPolicy/relaxc-server"]["spec"]["ingress"] == [{"ports": [{"port": ports["http"]}]}]


def test_what_selects_selects_something() -> None:
    labels = {name: ALL[name]["spec"]["template"]["metadata"]["labels"] for name in PODS}
    for name in PODS:
        assert ALL[name]["spec"]["selector"]["matchLabels"].items() <= labels[name].items()
    for name, each in ALL.items():
        spec = each.get("spec", {})
        if each["kind"] == "HorizontalPodAutoscaler":
            assert f"Deployment/{spec['scaleTargetRef']['name']}" in PODS
            assert "replicas" not in ALL[f"Deployment/{spec['scaleTargetRef']['name']}"]["spec"]
        selector = spec["selector"] if each["kind"] == "Service" else spec.get("podSelector", {}).get("matchLabels", {})
        assert any(selector.items() <= found.items() for found in labels.values()), name


def test_workers_are_scaled_by_a_metric_that_there_is() -> None:
    [metric] = ALL["HorizontalPodAutoscaler/relaxc-worker"]["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    source = (ROOT / "service" / "api" / "metrics.py").read_text(encoding="utf-8")
    assert re.search(rf'"{name}", help, labels=\["needs", "taker"\]', source)
    [rule] = yaml.safe_load(ALL["ConfigMap/relaxc-metrics"]["data"]["external.yaml"])
    assert (rule["seriesQuery"], rule["name"]["as"]) == (name, name)
    assert "by (needs, taker)" in rule["metricsQuery"]


def test_nothing_reaches_a_worker() -> None:
    policy = ALL["NetworkPolicy/relaxc-workers"]["spec"]
    components = {ALL[name]["metadata"]["labels"]["app.kubernetes.io/component"] for name in PODS} - {"server"}
    assert policy["policyTypes"] == ["Ingress"] and "ingress" not in policy
    assert set(policy["podSelector"]["matchExpressions"][0]["values"]) == components
