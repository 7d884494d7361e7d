"""Single layers at the sizes of real models: compressed products, attention, and long rows.

Each is recorded on a dry device as one step of a plan, whose operands lie in device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

import ovgpu
from bench.gpu_layers import ATTENTIONS, FORMS, PRODUCTS, Attention, Product
from bench.kernels.cards import Card
from bench.kernels.dry_device import dry_device
from bench.kernels.launches import StepLaunches, launches_of, overlapping, steps_of
from bench.workloads import ROWS, VOCABULARY
from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.runtime.backend import Call
from ovgpu.runtime.plan import Operand, PlanStep
from ovgpu.types import Type

Recorded = tuple[PlanStep, Sequence[Call]]


def _operand(shape: Sequence[int], kind: Type = Type.f16, share: float = 1.0) -> Operand:
    """Return an operand in device memory, of whose rows a step reads a share."""
    nbytes = int(share * prod(shape) * kind.bitwidth / 8)
    return Operand(kind, tuple(shape), "constant", "constant", nbytes)


def _step(op: str, inputs: Sequence[Operand | None], outputs: Sequence[Operand]) -> PlanStep:
    read, written = (sum(x.nbytes or 0 for x in side if x is not None) for side in (inputs, outputs))
    return PlanStep(0, 0, "bound", op, "", op, tuple(inputs), tuple(outputs), bytes_read=read, bytes_written=written)


def _arrays(layer: Attention | Product) -> dict[str, Any]:
    return {name: rt.cupy().empty(shape, kind.storage) for name, (shape, kind) in layer.shapes().items()}


def product(layer: Product, launcher: Launcher) -> Recorded:
    """Record a product of rows in f16 with a compressed matrix."""
    layer.record(launcher, _arrays(layer))
    shapes, matrix = layer.shapes(), _operand((layer.k, layer.n), FORMS[layer.form][0])
    terms = [_operand(*shapes[name]) if name in shapes else None for name in ("scale", "zero")]
    return (
        _step("MatMul", [_operand(*shapes["x"]), matrix, *terms], [_operand((layer.rows, layer.n))]),
        launcher.calls,
    )


def attention(layer: Attention, launcher: Launcher) -> Recorded:
    """Record an attention."""
    layer.record(launcher, _arrays(layer))
    shapes, kind = layer.shapes(), layer.shapes()["q"][1]
    read = layer.keys / (layer.capacity or layer.keys)
    lengths = (layer.batch, layer.heads, 1, layer.keys, layer.head)
    operands = [
        _operand(*shapes["q"]),
        *(_operand(lengths, kind) for _ in range(2)),
        _operand(*shapes["mask"], share=read) if "mask" in shapes else None,
    ]
    return _step("Attention", operands, [_operand(*shapes["q"])]), launcher.calls


SHOWN_ROWS, SHOWN_FORMS = (1, 4, 16, 64), ("int4 g128", "int8 zero")
LAYERS = {
    **{
        layer.name: partial(product, layer)
        for layer in PRODUCTS
        if layer.rows in SHOWN_ROWS and layer.form in SHOWN_FORMS
    },
    **{f"attention, {layer.name}": partial(attention, layer) for layer in ATTENTIONS},
}
# Operations on one row of a vocabulary's logits, by the names of their workloads.
NETS = {
    f"{title} of {VOCABULARY}": ROWS[name]
    for title, name in (
        ("Softmax", "softmax_row"),
        ("ReduceMax", "max_row"),
        ("MVN", "normalize_row"),
        ("TopK 1", "argmax_row"),
        ("TopK 50", "topk_row"),
    )
}
CASES = (*LAYERS, *NETS)


def of_case(name: str, card: Card, repeats: int = 1) -> list[StepLaunches]:
    """Return the steps of a case and their launches on a card; the first one does not begin early. Products and
    attentions have one step, which may be repeated."""
    with dry_device(card) as device:
        if name in NETS:
            core = ovgpu.Core()
            request = core.compile_model(core.read_model(*NETS[name]().build()), device).create_infer_request()
            request.infer([np.zeros((1, VOCABULARY), np.float32)])
            return [row for row in steps_of(request._session.last)[1] if row.step.kind == "bound"]
        backend = CudaBackend(tf32=name.endswith("tf32"))
        with backend.active():
            step, calls = LAYERS[name](Launcher(backend.stream, backend.blas))
        return list(overlapping([StepLaunches(step, tuple(launches_of(calls)))] * repeats))
