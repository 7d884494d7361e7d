"""Programs that append tokens to KV caches in place, for decode steps and for batches; see `passes.split_decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ovgpu.lowering.build import build
from ovgpu.lowering.loops import Layouts
from ovgpu.lowering.program import Program
from ovgpu.model import Model
from ovgpu.ops.base.view import dense_strides
from ovgpu.ops.fused.kv_cache import host_pool_order
from ovgpu.passes import Target, fuse_layers
from ovgpu.passes.split_decode import DecodeSplit, split_decode
from ovgpu.runtime.backend import Backend
from ovgpu.symbolic import HELPERS, ExpressionCodegen, Int, Table

MAX_APPENDED_TOKENS = 16  # per decode step; the host computes masks of many more tokens too slowly

Shapes = Sequence[tuple[int, ...]]


class DecodePrograms:
    """Programs of the host part and the device part of a model, shared by its requests.

    ``read`` has the indices of the inputs that the device part reads; ``used`` adds the inputs whose shapes its shape
    functions read, and ``fetched`` has those whose values they read on the host. ``hosts`` has the programs of the host
    part by ranks and types of its inputs. Programs for decode steps have layers fused into kernels for up to
    `MAX_APPENDED_TOKENS` tokens; those for caches in pages take any number.
    """

    def __init__(self, parts: DecodeSplit, backend: Backend, target: Target) -> None:
        self.parts = parts
        table = Table()
        specs = parts.specs(table)
        fuse_layers(parts.device, target, "batch" if parts.paged else "decode")
        first = len(specs) - len(parts.caches)  # the caches are the last inputs
        layouts = Layouts()
        if parts.paged and not backend.remote:
            for index, cache in enumerate(parts.caches, first):
                layouts.inputs[index] = _strides_of_host_pool(specs[index].shape or (), cache.axis)
        self.device = build(parts.device, specs, table, layouts, uploads=backend.remote, downloads=backend.remote)
        self.device.caches = {index: cache.name for index, cache in enumerate(parts.caches, first)}
        self.hosts: dict[tuple[Any, ...], Program] = {}
        roots = {v.root for step in self.device.steps for i in step.inputs if i >= 0 for v in [self.device.values[i]]}
        self.read = [index for index, value in enumerate(self.device.inputs) if value in roots]
        shape_functions = " ".join(segment.shape_function_source for segment in self.device.segments)
        self.used = [
            index
            for index, value in enumerate(self.device.inputs)
            if index in self.read or f"A[{value}]" in shape_functions
        ]
        on_host = len(self.device.values)  # number of the first input's host array, see `lowering.segments`
        self.fetched = [
            index for index in range(len(self.device.inputs)) if f"fetch(A[{on_host + index}])" in shape_functions
        ]
        self.shapes = _shapes([cache.shape for cache in parts.caches])

    @staticmethod
    def of(model: Model, backend: Backend, target: Target, paged: bool = False) -> DecodePrograms | None:
        """Return the programs of a model, with caches in pages if ``paged``, or None if it cannot be split."""
        parts = split_decode(model, paged)
        return None if parts is None else DecodePrograms(parts, backend, target)


def _strides_of_host_pool(shape: Sequence[Int], axis: int) -> tuple[Int, ...]:
    """Return the strides of a pool that `host_pool` makes."""
    order = host_pool_order(len(shape), axis)
    strides = dict(zip(order, dense_strides([shape[i] for i in order])))
    return tuple(strides[i] for i in range(len(shape)))


def _shapes(append_shapes: Sequence[tuple[Int, ...]]) -> Callable[[Shapes], Shapes]:
    """Compile symbolic shapes to a function from the shapes of a model's inputs to concrete shapes."""
    codegen = ExpressionCodegen(lambda atom: "S[{}][{}]".format(*atom.args))
    tuples = ["".join(f"{codegen.expression(d)}, " for d in shape) for shape in append_shapes]
    body = "; ".join([*codegen.lines, f"return ({', '.join(f'({items})' for items in tuples)},)"])
    names: dict[str, Any] = dict(HELPERS)
    exec(f"def shapes(S): {body}", names)
    return names["shapes"]  # type: ignore[no-any-return]
