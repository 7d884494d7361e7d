"""Run the steps of the image's Dockerfile in empty Debian systems, and then the server as in Kubernetes.

    python -m tests.serve.image FOLDER [EXTRAS]

The machine needs mmdebstrap, chroot and a user who may use them, but no Docker. FOLDER, which is new, gets a system for
each stage. The server has the arguments of the Deployment and the demo's models, on the CPU. Its root is writable.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.harness.servers.serving import SECONDS, Client
from tests.serve.test_stop import ROOT

DEPLOY = ROOT / ".github" / "deploy"
TOKEN = "a-token-for-the-image"
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # of this machine, which may have a proxy


@dataclass
class Stage:
    """System of a stage of the Dockerfile."""

    root: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    user: str = "0:0"
    entry: list[str] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs another one in the system."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", *variables, *arguments]


def steps(text: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of a Dockerfile."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def bootstrap(root: Path, release: str) -> None:
    """Make an empty Debian system, in which names of hosts have addresses."""
    subprocess.run(["mmdebstrap", "--variant=minbase", "--quiet", release, str(root)], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / CERTIFICATES.name)


def copy(arguments: str, stage: Stage, stages: dict[str, Stage]) -> None:
    """Copy files from the source tree, or from another stage. A folder's contents are copied."""
    *options, target = shlex.split(arguments)
    sources = [option for option in options if not option.startswith("--")]
    origin = next((stages[option.removeprefix("--from=")].root for option in options if "--from=" in option), ROOT)
    for source in sources:
        path, place = origin / source.lstrip("/"), stage.root / target.lstrip("/")
        if path.is_dir():
            shutil.copytree(path, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def build(folder: Path, extras: str) -> Stage:
    """Run all steps, and return the last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for instruction, rest in steps((DEPLOY / "Dockerfile").read_text()):
        print(f"{instruction} {rest}", flush=True)
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(folder / (name or "last"))
            bootstrap(stage.root, image.partition(":")[2].removesuffix("-slim"))
            if (stage.root / CERTIFICATES.name).exists():
                stage.variables["PIP_CERT"] = f"/{CERTIFICATES.name}"
        elif instruction == "ARG":
            name, _, default = rest.partition("=")
            stage.variables[name] = extras if name == "EXTRAS" and extras else default
        elif instruction == "ENV":
            stage.variables |= dict(word.split("=", 1) for word in shlex.split(rest))
        elif instruction == "RUN":
            subprocess.run(stage.command("sh", "-c", rest), check=True, stdout=subprocess.DEVNULL)
        elif instruction == "COPY":
            copy(rest, stage, stages)
        elif instruction == "USER":
            stage.user = rest
        elif instruction == "ENTRYPOINT":
            stage.entry = json.loads(rest)
        else:
            assert instruction in ("EXPOSE", "CMD"), instruction
    return stage


def check(stage: Stage) -> None:
    """Start the server, wait until it is ready, run inferences with a token, and stop it."""
    import yaml  # which comes with the extra docs

    subprocess.run(
        [sys.executable, "-m", "ovgpu", "demo", "--device", "CPU", "--save", str(stage.root / "models")],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (stage.root / "secrets").mkdir()
    (stage.root / "secrets" / "tokens").write_text(f"{TOKEN} infer\n")
    deployment = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "deployment.yaml").read_text())
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    options = ["--device=CPU", "--port=0", "--grpc-port=0", "--no-access-log", "--drain-seconds=1"]
    process = subprocess.Popen(
        stage.command(*stage.entry, *arguments, *options), stderr=subprocess.PIPE, text=True, env={"PATH": PATH}
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if " INFO ready: " in line:
            break
    text = "".join(lines)
    print(text)
    for interface in ("REST", "gRPC"):
        found = re.search(rf"{interface} on 0\.0\.0\.0:(\d+)", text)
        assert found, text
        with Client(interface, f"127.0.0.1:{found[1]}") as client:
            assert client.client.is_server_ready()
            x = np.array([1], np.float32)
            headers = {"authorization": f"Bearer {TOKEN}"}
            window = client.infer("moving_window", {"x": x}, sequence_id=1, sequence_start=True, headers=headers)
            assert window["window"].tolist()[-1] == 1
    assert os.stat(f"/proc/{process.pid}").st_uid == 10001
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    process.stderr.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    target.mkdir()
    last = build(target, sys.argv[2] if len(sys.argv) > 2 else "")
    check(last)
    size = subprocess.run(["du", "-sm", str(last.root)], check=True, capture_output=True, text=True).stdout
    print(f"the image works; its system has {size.split()[0]} MB")
