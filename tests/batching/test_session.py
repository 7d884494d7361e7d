"""Batch requests use a Session by its documented interface alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import ovgpu
from ovgpu.request import request_programs, session

BATCHING = Path(ovgpu.__file__).parent / "batching"


def documented() -> set[str]:
    """Return the names in class Session and its base that have a docstring: methods, properties, and attributes."""
    return documented_in(session) | documented_in(request_programs)


def documented_in(module: ModuleType) -> set[str]:
    assert module.__file__ is not None
    (cls,) = (n for n in ast.parse(Path(module.__file__).read_text()).body if isinstance(n, ast.ClassDef))
    found = {n.name for n in cls.body if isinstance(n, ast.FunctionDef) and ast.get_docstring(n)}
    for node, after in zip(cls.body, cls.body[1:]):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of sessions, which are called ``session`` or are an attribute of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            if getattr(value, "id", getattr(value, "attr", None)) == "session":
                yield node.attr


def test_what_batch_requests_use_is_documented() -> None:
    interface = documented()
    assert {"run", "state", "variables", "execute", "update"} <= interface
    uses = {file.name: set(used(ast.parse(file.read_text()))) for file in BATCHING.glob("*.py")}
    assert uses["request.py"] and uses["paged_request.py"]
    assert {name for names in uses.values() for name in names if name.startswith("_")} == set()
    assert {name for names in uses.values() for name in names} <= interface


def test_batch_requests_are_no_sessions() -> None:
    from ovgpu.batching.paged_request import PagedRequest
    from ovgpu.batching.request import BatchRequest

    assert BatchRequest.__mro__ == (BatchRequest, object)
    overridden = {name for name in vars(PagedRequest) if name in vars(BatchRequest) and name[0] == "_" != name[1]}
    assert overridden == set()
