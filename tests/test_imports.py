"""Import rules: the layers of ovgpu, and the files that may import cupy and openvino."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ovgpu._util.extras import install_command

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ovgpu"

# Lowest first; a file imports from its own layer and those below.
LAYERS = [
    {"cache_capacity", "errors", "properties", "spec", "symbolic", "types", "version"},
    {"_util"},
    {"tensor"},
    {"model"},
    {"ops"},
    {"interop", "ir", "preprocess"},
    {"passes"},
    {"lowering"},
    {"runtime"},
    {"backends"},
    {"debug"},
    {"compile"},
    {"request"},
    {"api"},
    {"batching"},
    {"genai"},
    {"serve"},
    {
        "cli",
        "docs",
        "exceptions",
        "helpers",
        "integrations",
        "layout_helpers",
        "run_with_openvino",
        "utils",
        "__init__",
        "__main__",
    },
]
LAYER = {unit: number for number, layer in enumerate(LAYERS) for unit in layer}

# Optional libraries, and the prefixes of the paths that may import them.
HOMES = {
    "cupy": ("backends/cuda/",),
    "cupyx": ("backends/cuda/",),
    "nvmath": ("backends/cuda/",),
    "cudnn": ("backends/cuda/",),
    "openvino": ("integrations/", "interop/"),
    "grpc": ("serve/",),
    "grpc_health": ("serve/",),
    "prometheus_client": ("serve/",),
    "redis": ("serve/redis_store.py",),
    "starlette": ("serve/", "integrations/ray/"),
    "tritonclient": ("serve/",),
    "uvicorn": ("serve/",),
    "opentelemetry": ("serve/",),
    "google": ("serve/",),
    "ray": ("integrations/ray/",),
    "triton_python_backend_utils": ("integrations/triton/",),
    "torch": (),
    "pytest": (),
    "tests": (),
}

FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Return (line, dotted module) of everything a file imports, also inside functions and for type checking."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                if node.level
                else node.module or ""
            )
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def unit(path: Path) -> str:
    """Return the name of a file in `LAYERS`: the first part of its path inside the package."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_imports_only_from_lower_layers() -> None:
    found = []
    for file in FILES:
        assert unit(file) in LAYER, f"{unit(file)} has no layer"
        for line, module in imports(file):
            parts = module.split(".")
            target = parts[1] if len(parts) > 1 and parts[1] in LAYER else "__init__"
            if parts[0] == "ovgpu" and LAYER[target] > LAYER[unit(file)]:
                found.append(f"{file.relative_to(ROOT)}:{line}: {unit(file)} must not import {module}, above it")
    assert not found, "\n".join(found)


def test_ir_does_not_import_interop() -> None:
    """`interop` converts models of openvino by way of IR, so `ir` itself must not need it."""
    for file in FILES:
        if unit(file) == "ir":
            assert not [module for _, module in imports(file) if module.startswith("ovgpu.interop")], file


def test_optional_libraries_are_imported_only_at_home() -> None:
    found = []
    for file in FILES:
        location = file.relative_to(PACKAGE).as_posix()
        for line, module in imports(file):
            homes = HOMES.get(module.split(".")[0])
            if homes is not None and not location.startswith(homes):
                found.append(f"ovgpu/{location}:{line} must not import {module}")
    assert not found, "\n".join(found)


def test_import_loads_no_optional_or_slow_modules() -> None:
    unwanted = {"cupy", "nvmath", "openvino", "ray", "torch", "rich", "logging", "tempfile", "hashlib", "json"}
    code = f"import sys, ovgpu; print(sys.modules.keys() & {unwanted} or 'none')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"


def test_ray_is_missing() -> None:
    code = "import sys; sys.modules['ray'] = None; import ovgpu; ovgpu.ray"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(f"ImportError: ovgpu.ray needs Ray: {install_command('ray')}")
