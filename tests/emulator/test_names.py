"""Names that the CUDA backend takes from CuPy exist in the installed CuPy and in the emulator. No GPU is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import cupy_emu

BACKEND = Path(__file__).parents[2] / "ovgpu" / "backends" / "cuda"
NEED_LIBRARIES = {"cuda.cufft"}  # cannot be imported without the library


def chains(file: Path) -> Iterator[str]:
    """Yield the dotted names that begin at CuPy, or at a variable such as `cuda` or `driver` made from it."""
    tree = ast.parse(file.read_text())
    roots = {"cupy": "", "rt.cupy()": "", "self.cupy": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for name, value in _assigned(node):
                whole = _resolved(value, roots)
                if whole and name not in roots and name != "self.cupy":
                    roots[name] = whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (whole := _resolved(node, roots)):
            yield whole


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from ((ast.unparse(t), v) for t, v in zip(target.elts, node.value.elts))
        else:
            yield ast.unparse(target), node.value


def _resolved(node: ast.expr, roots: dict[str, str]) -> str:
    """Return the name below CuPy; "" for an expression that does not begin there."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and ast.unparse(node) not in roots:
        parts.append(node.attr)
        node = node.value
    known = roots.get(ast.unparse(node))
    return "" if known is None else ".".join([*filter(None, [known]), *reversed(parts)])


NAMES = sorted({name for file in BACKEND.glob("*.py") for name in chains(file)})


def find(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def test_chains_are_found() -> None:
    assert {
        "cuda.driver.funcGetAttribute",
        "cuda.compiler.compile_using_nvrtc",
        "cuda.function.Module",
        "cuda.runtime.streamCaptureModeThreadLocal",
        "_core.core.assemble_cupy_compiler_options",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_emulator_has_it(name: str) -> None:
    find(cupy_emu, name)


@pytest.mark.parametrize("name", sorted(set(NAMES) - NEED_LIBRARIES))
def test_cupy_has_it(name: str) -> None:
    find(pytest.importorskip("cupy"), name)
