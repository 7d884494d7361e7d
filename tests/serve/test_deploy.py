"""The image and the manifests of Kubernetes: they fit the command, the server and each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ovgpu.cli import parser
from ovgpu.serve.settings import read
from ovgpu.serve.tokens import Tokens
from tests.harness.servers.serving import serving, write
from tests.serve.image import DEPLOY, steps
from tests.serve.test_access import call
from tests.serve.test_models import adding

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra `docs`")

BASE = DEPLOY / "kubernetes" / "base"
README = (DEPLOY.parents[1] / "ovgpu" / "serve" / "README.md").read_text()


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((BASE / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return found


def test_the_arguments_are_those_of_the_command(pod: dict[str, Any], container: dict[str, Any]) -> None:
    args = parser().parse_args(["serve", *container["args"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": args.port, "grpc": args.grpc_port}
    assert args.drain_seconds > 2 * container["readinessProbe"]["periodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > args.drain_seconds + args.grace_seconds
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(args.path), str(args.token_file.parent), args.cache_dir, "/tmp"} == mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_probes_need_no_token(container: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "models", adding(1), "add")
    (tmp_path / "tokens").write_text("a-token-with-16-characters")
    with serving(tmp_path / "models", token_file=tmp_path / "tokens") as server:
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            assert call(server, "GET", container[probe]["httpGet"]["path"], {"Host": "10.0.0.1:8000"})[0] == 200


def test_the_pod_has_few_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    users = [rest for instruction, rest in steps((DEPLOY / "Dockerfile").read_text()) if instruction == "USER"]
    security = pod["securityContext"]
    assert users == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert security["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"] and not pod["automountServiceAccountToken"]


def test_the_image_starts_the_command() -> None:
    instructions = dict(steps((DEPLOY / "Dockerfile").read_text()))
    assert json.loads(instructions["ENTRYPOINT"]) == ["ovgpu", "serve"]
    assert instructions["EXPOSE"] == "8000 8001"


def test_a_kustomization_lists_all_files() -> None:
    for folder in (DEPLOY / "kubernetes").iterdir():
        files = {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}
        listed = set(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"])
        assert listed - {"../base"} == files


@pytest.mark.parametrize("name", ["base", "sequences"])
def test_manifests_are_valid(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is installed by hand")
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kinds = []
    for manifest in yaml.safe_load_all(done.stdout):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        kinds.append(manifest["kind"])
    assert ("StatefulSet" if name == "sequences" else "Deployment") in kinds


def test_the_example_of_a_token_file(tmp_path: Path) -> None:
    (text,) = re.findall(r"```text\n(# made by.*?)```", README, re.DOTALL)
    (tmp_path / "tokens").write_text(text)
    Tokens(tmp_path / "tokens")


def test_the_example_of_settings(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(max_batch_size.*?)```", README, re.DOTALL)
    (tmp_path / "ovgpu.toml").write_text(text)
    found, policy = read(tmp_path, tmp_path.name)
    assert policy.default == 3 and len(found.warm_up or ()) == 2
