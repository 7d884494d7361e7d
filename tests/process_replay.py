"""Compare the plans and kernels of the catalogue's models with those of another revision.

    python -m tests.process_replay [REVISION] [--model NAME]

A change that should change no program, such as a redesign, must print "no difference". The calls that are recorded
with each model run on the CPU and on the emulated card, in three precisions, by both revisions. Plans that differ are
printed as a diff, and kernels whose code differs, comments aside, as a list. A model that fails is a difference, even
if it fails in both. REVISION is HEAD by default, so that changes that are not committed are compared. Exit status 1 if
there is a difference.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "models" / "data"
CONFIGS = {"default": {}, "f16": {"INFERENCE_PRECISION_HINT": "f16"}, "f32": {"INFERENCE_PRECISION_HINT": "f32"}}
CALLS = 3  # of each model: a prompt or first call, and two more
FAILED = "failed: "
WIDTH = 400  # columns, so that no row of a plan wraps

Found = dict[str, list[str]]
"""The plans after each call, and the kernels, by model, device and precision; or the error."""


def dump(names: list[str]) -> Found:
    """Return what this process's ovgpu makes of the models."""
    from tests.harness import cuda

    with cuda.registered(None) as card:
        return {
            f"{name} {device} {precision}": _dump_one(name, device, precision)
            for name in names
            for device in ("CPU", card)
            for precision in CONFIGS
        }


def _dump_one(name: str, device: str, precision: str) -> list[str]:
    import ovgpu
    from ovgpu.cli._ports import port_name

    try:
        compiled = ovgpu.Core().compile_model(DATA / name / "model.xml", device, CONFIGS[precision])
        request, found = compiled.create_infer_request(), []
        with np.load(DATA / name / "expected.npz") as recorded:
            for call in range(CALLS):
                keys = [f"call/{call:02}/in/{port_name(port)}" for port in compiled.inputs]
                if all(key in recorded for key in keys):
                    request.infer([recorded[key] for key in keys])
                    found.append(_text(request.plan()))
        store = getattr(compiled._compilation.backend, "kernels", None)
        kernels = () if store is None else [kernel.code for kernel in store.used]
        return [*found, "\n".join(sorted(f"{kernel.name} {_digest(kernel.source)}" for kernel in kernels))]
    except Exception as e:
        return [f"{FAILED}{type(e).__name__}: {e}"]


def _digest(source: str) -> str:
    """Return a digest of C++ code without its comments and spaces."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    return hashlib.sha256("".join(code.split()).encode()).hexdigest()


def _text(plan: object) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(plan)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def differences(before: Found, after: Found) -> Iterator[str]:
    """Yield a text for each model, device and precision whose plans or kernels differ, or that fails."""
    for key in before:
        if before[key] == after.get(key):
            if before[key][0].startswith(FAILED):
                yield f"== {key}\n{before[key][0]}"
        else:
            lines = ("\n".join(texts).splitlines() for texts in (before[key], after.get(key, [])))
            yield "\n".join([f"== {key}", *list(difflib.unified_diff(*lines, "before", "after", lineterm="", n=0))[2:]])


def dumped(tree: Path, names: list[str]) -> Found:
    """Return what the ovgpu of a source tree makes of the models, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "found.json")
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run([sys.executable, "-P", __file__, "--dump", result, *names], env=environment, check=True)
        found: Found = json.loads(result.read_text())
        return found


def main() -> int:
    """Compare, or, as the process of one revision, write what it finds."""
    if sys.argv[1:2] == ["--dump"]:
        warnings.simplefilter("ignore")
        Path(sys.argv[2]).write_text(json.dumps(dump(sys.argv[3:])))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.process_replay", description=__doc__.split("\n\n")[0])
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--model", action="append", choices=sorted(path.name for path in DATA.iterdir()))
    options = parser.parse_args()
    names = options.model or sorted(path.parent.name for path in DATA.glob("*/model.xml"))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--detach", "-q", tree, options.revision], cwd=ROOT, check=True)
        try:
            found = list(differences(dumped(tree, names), dumped(ROOT, names)))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    print("\n\n".join(found) or f"no difference in {len(names)} models")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
