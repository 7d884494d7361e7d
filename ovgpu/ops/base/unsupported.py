"""Op class of layers that ovgpu does not implement, so that models with such layers can still be read and inspected."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ovgpu.errors import OpError, UnsupportedOpError
from ovgpu.model import Model, all_nodes
from ovgpu.ops.base.op import OPSETS, Array, Op, internal_op, lookup
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, unknown
from ovgpu.types import Dimension, PartialShape, Type


@internal_op
class Unsupported(Op):
    """An operation that ovgpu does not implement: it has the outputs that its layer declares, and cannot run."""

    name: str  # type: ignore[misc]
    version: str  # type: ignore[misc]
    texts: dict[str, str] = field(default_factory=dict)
    """The texts of the XML attributes in the file."""
    declared: tuple[tuple[Type, PartialShape], ...] = ()

    aliases = ()
    effect = True

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        return tuple(
            Spec(dtype, None if shape.rank.is_dynamic else tuple(map(_extent, shape))) for dtype, shape in self.declared
        )

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        raise OpError("is not supported")

    def attributes(self) -> dict[str, Any]:
        return dict(self.texts)


def _extent(dim: Dimension) -> Int:
    if dim.is_static:
        return dim.get_length()
    return unknown(dim.min_length, None if dim.max_length < 0 else dim.max_length)


def require_supported(model: Model) -> None:
    """Raise `UnsupportedOpError` if the model or its bodies have unsupported ops. The error lists them and their
    layers.

    Variables (ReadValue and Assign) in bodies are unsupported as well.
    """
    layers: dict[tuple[str, str], list[str]] = {}
    own = {node for node in model.ops}
    for node in all_nodes(model):
        if node.op.name in ("ReadValue", "Assign") and node not in own:
            raise UnsupportedOpError(
                f"[{node.op.name}] variables in the body of a Loop, TensorIterator, If are "
                f"unsupported ({node.source_location})"
            )
        if isinstance(node.op, Unsupported):
            layers.setdefault((node.op.name, node.op.version), []).append(f"'{node.friendly_name}'")
    if layers:
        listing = "; ".join(
            f"{name} of {version} (layer{'s' if len(names) > 1 else ''} {', '.join(names[:5])}"
            + (f" and {len(names) - 5} more)" if len(names) > 5 else ")")
            for (name, version), names in sorted(layers.items())
        )
        suffix = f" ({model.source})" if model.source else ""
        if any(lookup(name, OPSETS[-1]) is not None for name, _ in layers):
            suffix += f"; ovgpu knows {OPSETS[0]} to {OPSETS[-1]}"
        raise UnsupportedOpError(f"unsupported operations: {listing}{suffix}")
