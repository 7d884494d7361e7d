"""``ovgpu ops``: the supported operations, as the registry has them."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

import ovgpu
from ovgpu.cli._print import console, table
from ovgpu.cli.nvidia_plugin import NVIDIA_PLUGIN
from ovgpu.ops import Op, registry
from ovgpu.ops.base.op import is_own, schema
from ovgpu.types import Type

ELSEWHERE = {
    **dict.fromkeys(("Parameter", "Constant", "Result", "ReadValue", "Assign", "Concat"), "runtime"),
    **dict.fromkeys(("ShapeOf", "StringTensorPack", "StringTensorUnpack"), "host"),
    **dict.fromkeys(("ConvertLike", "Einsum"), "rewritten"),
}  # what becomes of operations that are no steps of a device
TICK = "✓"
MARKS = ("---", "---", ":-:", ":-:", ":-:", ":-:", "---")
COLUMNS = ("op", "versions", "NumPy", "CUDA", "CuPy", "NVIDIA plugin", "file")


def add_to(commands: Any) -> None:
    parser = commands.add_parser("ops", help="the operations that are supported, or one of them in detail")
    parser.add_argument("name", nargs="?", help="an operation: its versions, attributes and where it is defined")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.name is not None:
        _one(args.name)
        return
    classes = [cls for cls in registry() if not args.markdown or is_own(cls)]  # the README shows ovgpu's own
    rows = list(_rows(classes))
    summary = f"{len(rows)} operations in {len(classes)} versions"
    if args.markdown:
        lines = [COLUMNS, MARKS, *map(_cells, rows)]
        print("\n".join([f"{summary}:", "", *(f"| {' | '.join(line)} |" for line in lines)]))
        return
    out = console()
    out.print(table("", ("op", "versions", "on a device", "NVIDIA plugin", "file"), rows, whole=(0,)))
    out.print(summary, style="bold")
    out.print("on a device: by kernels, which write into planned memory and can be part of a graph; through CuPy, by "
              "their definition;\non the host; by the runtime itself; or rewritten into other operations\n"
              "NVIDIA plugin: whether openvino_contrib's has the operation", style="dim")


def forms(cls: type[Op]) -> list[str]:
    """How an op can run, the best first."""
    if cls.name in ELSEWHERE:
        return [ELSEWHERE[cls.name]]
    found = [name for name, there in (("view", cls.view is not Op.view), ("NumPy", cls.numpy is not None),
                                      ("CUDA", cls.cuda is not None)) if there]
    if any("Model" in str(kind) for kind, _ in attributes(cls).values()):
        return ["runtime"]
    return found or ["evaluate"]


def attributes(cls: type[Op]) -> dict[str, tuple[Any, bool]]:
    """Attribute name -> (annotation, required)."""
    return schema(cls)


def where(cls: type[Op]) -> tuple[str, int]:
    """The file of an op, as it is seen from the folder of the package, and the line where it begins."""
    file = Path(inspect.getsourcefile(cls) or "")
    root = Path(ovgpu.__file__).parents[1]
    line = inspect.getsourcelines(cls)[1]
    return (file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name), line


def _rows(classes: Sequence[type[Op]]) -> Iterator[tuple[str, ...]]:
    by_name: dict[str, list[type[Op]]] = {}
    for cls in classes:
        by_name.setdefault(cls.name, []).append(cls)
    for name, versions in by_name.items():
        newest = versions[-1]
        yield (name, ", ".join(c.version.removeprefix("opset") for c in versions), _on_device(newest),
               TICK if name in NVIDIA_PLUGIN else "", where(newest)[0])


def _on_device(cls: type[Op]) -> str:
    first = forms(cls)[0]
    return first if first in ELSEWHERE.values() else "kernels" if {"CUDA", "view"} & {*forms(cls)} else "CuPy"


def _cells(row: Sequence[str]) -> Sequence[str]:
    """A row of the README."""
    name, versions, place, plugin, file = row
    cuda, cupy = {"kernels": (TICK, ""), "CuPy": ("", TICK)}.get(place, (place, ""))
    return name, versions, TICK, cuda, cupy, plugin, f"[{Path(file).name}]({file})"


def _one(name: str) -> None:
    found = [cls for cls in registry() if name.lower() in (cls.name.lower(), *(a.lower() for a in cls.aliases))]
    if not found:
        near = difflib.get_close_matches(name, {cls.name for cls in registry()}, 4)
        raise LookupError(f"there is no operation {name!r}" + (f"; there is {', '.join(near)}" if near else ""))
    out = console()
    for cls in found:
        file, line = where(cls)
        out.print(Text.assemble((f"{cls.name}-{cls.version.removeprefix('opset')}", "bold"),
                                f"  {', '.join(forms(cls))}  ", (f"{file}:{line}", "dim")), soft_wrap=True)
        if cls.aliases:
            out.print(f"also called {', '.join(cls.aliases)}")
        if cls.__doc__:
            out.print(Text(inspect.cleandoc(cls.__doc__)))
        rows = [(key, _kind(kind), "required" if required else _default(cls, key))
                for key, (kind, required) in attributes(cls).items()]
        if rows:
            out.print(table("", ("attribute", "type", "default"), rows))
        else:
            out.print("no attributes\n")


def _kind(kind: Any) -> str:
    """An annotation without the modules in it."""
    return kind.__name__ if type(kind) is type else re.sub(r"\b(\w+\.)+(?=\w)", "", str(kind))


def _default(cls: type[Op], key: str) -> str:
    value = getattr(cls, key)
    return value.get_type_name() if isinstance(value, Type) else repr(value)
