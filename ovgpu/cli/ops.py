"""``ovgpu ops``: the supported operations in the registry, and the passes that rewrite models."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

import ovgpu
from ovgpu._util.nearest import nearest
from ovgpu.cli._print import console, table
from ovgpu.cli.nvidia_plugin import NVIDIA_PLUGIN
from ovgpu.ops import Op, registry
from ovgpu.ops.base.op import is_own, schema, specification
from ovgpu.passes import PASSES
from ovgpu.types import Type

SPECIAL_FORMS = {
    **dict.fromkeys(("Parameter", "Constant", "Result", "ReadValue", "Assign", "Concat"), "runtime"),
    **dict.fromkeys(("ShapeOf", "StringTensorPack", "StringTensorUnpack"), "host"),
    **dict.fromkeys(("ConvertLike", "Einsum"), "rewritten"),
}  # forms of operations that do not become steps of a device
TICK = "✓"
MARKS = ("---", "---", ":-:", ":-:", ":-:", ":-:", "---")
PASS_COLUMNS = ("pass", "stage", "devices", "before", "after")
COLUMNS = ("op", "versions", "NumPy", "CUDA", "CuPy", "NVIDIA plugin", "file")


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("ops", help="list the supported operations, or show one in detail")
    parser.add_argument("name", nargs="?", help="an operation: its versions, attributes and where it is defined")
    parser.add_argument("--passes", action="store_true", help="list the passes that rewrite models, in their order")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print all operations, one of them, or all passes. Raises LookupError if there is no operation of that name."""
    if args.passes:
        _print_passes(args.markdown)
        return
    if args.name is not None:
        _print_op(args.name)
        return
    classes = [cls for cls in registry() if not args.markdown or is_own(cls)]  # ovgpu/ops/README.md lists ovgpu's own
    by_name: dict[str, list[type[Op]]] = {}
    for cls in classes:
        by_name.setdefault(cls.name, []).append(cls)
    summary = f"{len(by_name)} operations in {len(classes)} versions"
    if args.markdown:
        print(f"{summary}:\n")
        _print_markdown([COLUMNS, MARKS, *map(_markdown_row, by_name.values())])
        return
    out = console()
    out.print(
        table(
            "",
            ("op", "versions", "on a device", "NVIDIA plugin", "file"),
            [_row(versions) for versions in by_name.values()],
            unwrapped=(0,),
        )
    )
    out.print(summary, style="bold")
    out.print(
        "on a device: kernels (write into planned memory, can be part of a CUDA graph), CuPy (runs the op's "
        "definition),\nhost, runtime (run by the runtime itself), or rewritten (into other operations)\n"
        "NVIDIA plugin: ✓ if openvino_contrib's plugin has the operation",
        style="dim",
    )


def forms(cls: type[Op]) -> list[str]:
    """Return the forms in which an op can run, the best first."""
    if cls.name in SPECIAL_FORMS:
        return [SPECIAL_FORMS[cls.name]]
    implemented = [
        name
        for name, available in (
            ("view", cls.view is not Op.view),
            ("NumPy", cls.numpy is not None),
            ("CUDA", cls.cuda is not None),
        )
        if available
    ]
    if any("Model" in str(annotation) for annotation, _ in attributes(cls).values()):
        return ["runtime"]
    return implemented or ["evaluate"]


def attributes(cls: type[Op]) -> dict[str, tuple[Any, bool]]:
    """Return a dict from attribute name to (annotation, required)."""
    return schema(cls)


def where(cls: type[Op]) -> tuple[str, int]:
    """Return the source file of an op, relative to the folder of the package, and its first line."""
    file = Path(inspect.getsourcefile(cls) or "")
    root = Path(ovgpu.__file__).parents[1]
    line = inspect.getsourcelines(cls)[1]
    return (file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name), line


def _row(versions: Sequence[type[Op]]) -> tuple[str, ...]:
    """Return the cells of an operation in the printed table."""
    newest = versions[-1]
    return (
        newest.name,
        ", ".join(map(_version, versions)),
        _on_device(newest),
        TICK if newest.name in NVIDIA_PLUGIN else "",
        where(newest)[0],
    )


def _on_device(cls: type[Op]) -> str:
    first = forms(cls)[0]
    return first if first in SPECIAL_FORMS.values() else "kernels" if {"CUDA", "view"} & {*forms(cls)} else "CuPy"


def _markdown_row(versions: Sequence[type[Op]]) -> tuple[str, ...]:
    """Return the cells of an operation in ovgpu/ops/README.md, whose versions link to their specifications."""
    name, _, form, plugin, file = _row(versions)
    linked = [f"[{_version(cls)}]({specification(cls)})" for cls in versions]
    cuda, cupy = {"kernels": (TICK, ""), "CuPy": ("", TICK)}.get(form, (form, ""))
    return (
        name,
        ", ".join(linked),
        TICK,
        cuda,
        cupy,
        plugin,
        f"[{Path(file).name}]({file.removeprefix('ovgpu/ops/')})",
    )


def _print_markdown(lines: Sequence[Sequence[str]]) -> None:
    """Print a table, whose second line has the alignment of the columns."""
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _print_passes(markdown: bool) -> None:
    """Print the passes in the order in which they run; Markdown has links from the folder ovgpu."""
    rows = []
    for entry in PASSES:
        file = entry.rewrite.__module__.rpartition(".")[2] + ".py"
        name = f"[{entry.name}](passes/{file})" if markdown else entry.name
        rows.append((name, entry.stage, entry.targets.text, entry.before, entry.after))
    if markdown:
        _print_markdown([PASS_COLUMNS, ("---",) * len(PASS_COLUMNS), *rows])
    else:
        console().print(table("", PASS_COLUMNS, rows, unwrapped=(0,)))


def _version(cls: type[Op]) -> str:
    return cls.version.removeprefix("opset")


def _print_op(name: str) -> None:
    classes = [cls for cls in registry() if name.lower() in (cls.name.lower(), *(a.lower() for a in cls.aliases))]
    if not classes:
        similar = nearest(name, {cls.name for cls in registry()}, 4)
        raise LookupError(f"there is no operation {name!r}" + (f"; there is {', '.join(similar)}" if similar else ""))
    out = console()
    for cls in classes:
        file, line = where(cls)
        out.print(
            Text.assemble(
                (f"{cls.name}-{cls.version.removeprefix('opset')}", "bold"),
                f"  {', '.join(forms(cls))}  ",
                (f"{file}:{line}", "dim"),
            ),
            soft_wrap=True,
        )
        if specification(cls):
            out.print(specification(cls), style="dim", soft_wrap=True)
        if cls.aliases:
            out.print(f"also called {', '.join(cls.aliases)}")
        if cls.__doc__:
            out.print(Text(inspect.cleandoc(cls.__doc__)))
        rows = [
            (key, _annotation_text(annotation), "required" if required else _default(cls, key))
            for key, (annotation, required) in attributes(cls).items()
        ]
        if rows:
            out.print(table("", ("attribute", "type", "default"), rows))
        else:
            out.print("no attributes\n")


def _annotation_text(annotation: Any) -> str:
    """Return an annotation as text, without module names."""
    return annotation.__name__ if type(annotation) is type else re.sub(r"\b(\w+\.)+(?=\w)", "", str(annotation))


def _default(cls: type[Op], key: str) -> str:
    value = getattr(cls, key)
    return value.get_type_name() if isinstance(value, Type) else repr(value)
