"""Single layers at the sizes of real models: compressed products, attention, and long rows.

Each is recorded on a dry device as one step of a plan, whose operands lie in device memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

import ovgpu
from bench.gpu_attention import CASES as ATTENTION
from bench.gpu_attention import Case
from bench.gpu_compressed import FORMS, SHAPES
from bench.kernels.cards import Card
from bench.kernels.dry_device import dry_device
from bench.kernels.launches import StepLaunches, launches_of, overlapping, steps_of
from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from ovgpu.ops.fused import _product_mma
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.passes.compressed import DEVICE_TILE
from ovgpu.runtime.backend import Call
from ovgpu.runtime.plan import Operand, PlanStep
from ovgpu.types import Type
from tests.harness.ir import Net

VOCABULARY = 128256
ROWS = (1, 4, 16, 64)
Recorded = tuple[PlanStep, Sequence[Call]]


def _operand(shape: Sequence[int], kind: Type = Type.f16, share: float = 1.0) -> Operand:
    """Return an operand in device memory, of whose rows a step reads a share."""
    nbytes = int(share * prod(shape) * kind.bitwidth / 8)
    return Operand(kind, tuple(shape), "constant", "constant", nbytes)


def _step(op: str, inputs: Sequence[Operand | None], outputs: Sequence[Operand]) -> PlanStep:
    read, written = (sum(x.nbytes or 0 for x in side if x is not None) for side in (inputs, outputs))
    return PlanStep(0, 0, "bound", op, "", op, tuple(inputs), tuple(outputs), bytes_read=read, bytes_written=written)


def _empty(shape: Sequence[int], kind: Type = Type.f16) -> Any:
    return rt.cupy().empty(tuple(shape), kind.storage)


def product(shape: tuple[int, int], form: str, m: int, launcher: Launcher) -> Recorded:
    """Record a product of m rows in f16 with a compressed matrix; see `bench.gpu_compressed`."""
    (n, k), (kind, group, zero) = shape, FORMS[form]
    groups = k // group if group else 1
    stored = (Type.u8, (n * k // 2,)) if group else (Type.u8, (n, k))
    params = [(Type.f16, (n, groups)), (Type.u8, (n, groups)) if zero else None]
    packed = Packed(kind, n, k, _product_mma.TABLES.get(kind, ()))
    op = CompressedMatMul(weights=packed, transpose=True, tile=DEVICE_TILE, device=True)
    arrays = [_empty((m, k)), *(None if x is None else _empty(x[1], x[0]) for x in (stored, *params))]
    op.cuda(launcher, arrays, [_empty((m, n))], [_empty((op.tile_elements + 1,), Type.f32)])
    operands = [_operand((m, k)), _operand((k, n), kind),
                *(None if x is None else _operand(x[1], x[0]) for x in params)]
    return _step("MatMul", operands, [_operand((m, n))]), launcher.calls


def attention(case: Case, launcher: Launcher) -> Recorded:
    """Record an attention; see `bench.gpu_attention`."""
    rows = case.capacity or case.keys
    q, kv = (case.batch, case.heads, case.shared, case.queries, case.head), (case.batch, case.heads, 1, rows, case.head)
    kind = Type.of(case.dtype)
    masks = {"added": ((1, 1, 1, case.queries, rows), kind), "boolean": ((1, 1, 1, 1, rows), Type.boolean)}
    mask = masks.get(case.mask)
    length = rt.cupy().empty((1,), np.int64) if case.capacity else None
    arrays = (*(_empty(shape, kind) for shape in (q, kv, kv)), None if mask is None else _empty(*mask), None, None)
    _attention.attend(launcher, arrays, _empty(q, kind), case.mask == "causal", length)
    read = case.keys / rows
    operands = [_operand(q, kind), *(_operand(kv, kind, read) for _ in range(2)),
                None if mask is None else _operand(*mask, share=read)]
    lengths = [*kv[:3], case.keys, case.head]
    operands[1:3] = [Operand(kind, tuple(lengths), "constant", "constant", x.nbytes) for x in operands[1:3] if x]
    return _step("Attention", operands, [_operand(q, kind)]), launcher.calls


def row(op: str, version: str, attributes: Mapping[str, Any], count: int = 0) -> Net:
    """Return an operation on one row of a vocabulary's logits in f32; ``count`` is TopK's k."""
    net = Net(op)
    x = net.parameter("f32", (1, VOCABULARY), "x")
    if op == "TopK":
        values, indices = net.layer(op, version, [x, net.const(np.int64(count))], attributes, ["f32", "i64"])
        net.result(values)
        net.result(indices)
    else:
        axes = [net.const(np.array([1]))] if op in ("ReduceMax", "MVN") else []
        net.result(net.layer(op, version, [x, *axes], attributes))
    return net


PRODUCTS = {f"{n} x {k} {form}, {m} rows": partial(product, (n, k), form, m)
            for n, k in SHAPES for form in ("int4 g128", "int8 zero") for m in ROWS}
ATTENTIONS = {f"attention, {case.name}": partial(attention, case) for case in ATTENTION}
NETS = {
    f"Softmax of {VOCABULARY}": row("Softmax", "opset8", {"axis": 1}),
    f"ReduceMax of {VOCABULARY}": row("ReduceMax", "opset1", {"keep_dims": True}),
    f"MVN of {VOCABULARY}": row("MVN", "opset6", {"eps": 1e-5, "eps_mode": "inside_sqrt", "normalize_variance": True}),
    **{f"TopK {k} of {VOCABULARY}": row("TopK", "opset11", {"axis": 1, "mode": "max", "sort": "value",
                                                            "index_element_type": "i64"}, k) for k in (1, 50)},
}
CASES = (*PRODUCTS, *ATTENTIONS, *NETS)


def of_case(name: str, card: Card, repeats: int = 1) -> list[StepLaunches]:
    """Return the steps of a case and their launches on a card; the first one does not begin early. Products and
    attentions have one step, which may be repeated."""
    with dry_device(card) as device:
        if name in NETS:
            core = ovgpu.Core()
            request = core.compile_model(core.read_model(*NETS[name].build()), device).create_infer_request()
            request.infer([np.zeros((1, VOCABULARY), np.float32)])
            return [row for row in steps_of(request._last)[1] if row.step.kind == "bound"]
        backend = CudaBackend(tf32=name.endswith("tf32"))
        with backend.active():
            step, calls = {**PRODUCTS, **ATTENTIONS}[name](Launcher(backend.stream, backend.blas))
        return list(overlapping([StepLaunches(step, tuple(launches_of(calls)))] * repeats))
