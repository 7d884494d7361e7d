"""Recurrent cells and sequences on the emulated device against NumPy."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.sequence import _recurrence, _recurrence_mma
from ovgpu.ops.sequence._cells import GRU, LSTM, RNN, Recurrent
from ovgpu.ops.sequence.recurrent import (
    GRUCell,
    GRUSequence,
    LSTMCell,
    LSTMCell1,
    LSTMSequence,
    RNNCell,
    RNNSequence,
)
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, replay

Array = np.ndarray[Any, Any]
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-3, "bfloat16": 8e-3}  # 16 bits: one ulp
CELLS: list[tuple[type[Recurrent], type[Recurrent], dict[str, Any]]] = [
    (LSTMCell, LSTMSequence, {}),
    (LSTMCell, LSTMSequence, {"activations": ("hardsigmoid", "relu", "sigmoid"), "clip": 0.4,
                              "activations_alpha": (0.3,), "activations_beta": (0.4,)}),
    (GRUCell, GRUSequence, {}),
    (GRUCell, GRUSequence, {"activations": ("sigmoid", "relu"), "clip": 0.5}),
    (GRUCell, GRUSequence, {"linear_before_reset": True}),
    (RNNCell, RNNSequence, {}),
    (RNNCell, RNNSequence, {"activations": ("relu",), "clip": 1.0}),
]  # fmt: skip


def cell_inputs(op: Recurrent, batch: int, features: int, hidden: int) -> list[tuple[int, ...]]:
    return [
        (batch, features),
        *[(batch, hidden)] * op.states,
        (op.gates * hidden, features),
        (op.gates * hidden, hidden),
        (op.bias_rows() * hidden,),
    ]


def sequence_inputs(op: Any, batch: int, steps: int, features: int, hidden: int) -> list[tuple[int, ...]]:
    p = len(op.reverses())
    return [
        (batch, steps, features),
        *[(batch, p, hidden)] * op.states,
        (batch,),
        (p, op.gates * hidden, features),
        (p, op.gates * hidden, hidden),
        (p, op.bias_rows() * hidden),
    ]


def run(
    backend: CudaBackend,
    op: Any,
    shapes: list[tuple[int, ...]],
    kind: Any = np.float32,
    steps: int = 0,
    outputs: Any = None,
    given: Any = None,
    lengths: Any = np.int32,
) -> list[Any]:
    """Check an op eagerly and replayed; return the recorded calls. ``steps`` bounds the lengths, if there are any."""
    kind = np.dtype(kind)
    random = np.random.default_rng(3)
    draws = [
        [
            random.integers(0, steps + 1, s).astype(lengths)
            if steps and len(s) == 1
            else random.standard_normal(s).astype(kind) * kind.type(0.5)
            for _ in range(3)
        ]
        for s in shapes
    ]
    inputs = [cupy_emu.empty(d[0].shape, d[0].dtype) for d in draws]
    results = [
        [
            np.asarray(y).astype(kind)
            for y in op.evaluate(
                NUMPY,
                *(d[i] if d[i].dtype.kind == "i" or kind == np.float64 else d[i].astype(np.float32) for d in draws),
            )
        ]
        for i in range(3)
    ]
    found = [cupy_emu.empty(y.shape, kind) for y in results[0]] if outputs is None else outputs(results[0])
    workspace = []
    if steps:
        n, p, t, hidden = results[0][0].shape
        sums = np.float64 if kind == np.float64 else np.float32
        workspace = [cupy_emu.empty((p * n * t * op.gates * hidden,), sums)]
    recorded: list[Any] = []

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        assert op.cuda(launcher, inputs if given is None else given(inputs), found, workspace) is None
        recorded.extend(launcher.calls)
        return launcher.calls

    replay(backend, record, list(zip(inputs, draws)), found, lambda i: results[i], TOLERANCE[kind.name])
    return recorded


def kernels(calls: list[Any]) -> int:
    return sum(kernel_name(call).startswith("recurrent<") for call in calls)


@pytest.mark.parametrize(("cell", "_", "attributes"), CELLS)
def test_cells(cell: Any, _: Any, attributes: dict[str, Any], backend: CudaBackend) -> None:
    op = cell(**attributes)
    calls = run(backend, op, cell_inputs(op, 3, 37, 21))
    assert len(calls) == kernels(calls) == 1


@pytest.mark.drawn(6)
@pytest.mark.parametrize("cell", [LSTMCell, GRUCell, RNNCell])
@pytest.mark.parametrize("batch", [1, 2, 5, 9])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_cells_with_vector_loads(cell: Any, batch: int, kind: Any, backend: CudaBackend) -> None:
    """Lanes read rows 16 bytes at a time, several times for long rows; four sequences share each read."""
    run(backend, cell(), cell_inputs(cell(), batch, 264, 144), kind)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("cell", [LSTMCell, GRUCell, RNNCell])
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_cells_of_types(cell: Any, kind: Any, backend: CudaBackend) -> None:
    op = cell()
    run(backend, op, cell_inputs(op, 2, 9, 8), kind)


def test_lstm_cell_1(backend: CudaBackend) -> None:
    """LSTMCell-1 may have no bias, peepholes, or W and R in one matrix."""
    op = LSTMCell1()
    shapes = cell_inputs(op, 2, 5, 8)
    for given in (shapes, shapes[:-1], [*shapes, (24,)]):
        assert len(run(backend, op, given)) == 1
    joined = [*shapes[:3], (32, 13), (32,)]
    assert len(run(backend, op, joined)) == 1
    run(backend, op, [(2, 8), *shapes[1:3], (32, 16), (32,)], np.float16)


def test_cells_take_slices(backend: CudaBackend) -> None:
    op = LSTMCell()
    shapes = cell_inputs(op, 2, 6, 8)

    def given(inputs: list[Any]) -> list[Any]:
        wide = cupy_emu.empty((2, 3, 6), np.float32)
        inputs[0] = wide[:, 1]
        return inputs

    random = [np.random.default_rng(i).standard_normal((2, 3, 6)).astype(np.float32) for i in range(3)]
    wide = cupy_emu.empty((2, 3, 6), np.float32)
    rest = [np.random.default_rng(9 + i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes[1:])]
    out = cupy_emu.empty((2, 4, 8), np.float32)

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        constants = [cupy_emu.asarray(x) for x in rest]
        assert op.cuda(launcher, [wide[:, 1], *constants], [out[:, 2], out[:, 0]], ()) is None
        return launcher.calls

    def wanted(i: int) -> list[Array]:
        h, c = op.evaluate(NUMPY, random[i][:, 1], *rest)
        y = np.full(out.nbytes, 0xFB, np.uint8).view(np.float32).reshape(out.shape).copy()
        y[:, 2], y[:, 0] = h, c
        return [y]

    replay(backend, record, [(wide, random)], [out], wanted, 2e-5)


@pytest.mark.parametrize(("_", "sequence", "attributes"), CELLS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences(_: Any, sequence: Any, attributes: dict[str, Any], direction: Any, backend: CudaBackend) -> None:
    """A sequence is one product, and one launch for all steps."""
    op = sequence(direction=direction, **attributes)
    calls = run(backend, op, sequence_inputs(op, 2, 5, 6, 11), steps=5)
    assert kernels(calls) == 1 and len(calls) == 2


@pytest.mark.drawn(6)
@pytest.mark.parametrize("sequence", [LSTMSequence, GRUSequence, RNNSequence])
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_sequences_of_types(sequence: Any, kind: Any, backend: CudaBackend) -> None:
    op = sequence()
    run(backend, op, sequence_inputs(op, 3, 4, 5, 70), kind, steps=4, lengths=np.int64)


@pytest.mark.parametrize("sequence", [LSTMSequence, GRUSequence, RNNSequence])
@pytest.mark.parametrize(("batch", "hidden", "launches"), [(1, 8, 1), (3, 5, 1), (2, 9, 0)])
def test_one_multiprocessor(
    sequence: Any, batch: int, hidden: int, launches: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that run concurrently synchronize in one launch; otherwise, each step has its launches."""
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    op = sequence(direction="bidirectional")
    calls = run(backend, op, sequence_inputs(op, batch, 3, 5, hidden), steps=3)
    assert kernels(calls) == (launches or (6 if sequence is GRUSequence else 3))


def test_blocks_that_do_not_fit_together(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has its launches if the device cannot run all blocks concurrently."""
    monkeypatch.setattr(Kernel, "resident", lambda self, threads, shared: 1)
    op = LSTMSequence()
    assert kernels(run(backend, op, sequence_inputs(op, 2, 3, 5, 40), steps=3)) == 3


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sequence", [LSTMSequence, GRUSequence, RNNSequence])
@pytest.mark.parametrize("batch", [1, 5])
def test_weights_that_registers_cannot_hold(
    sequence: Any, batch: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recurrence, "REGISTERS", ())
    monkeypatch.setattr(_recurrence_mma, "MIN_BATCH", batch + 1)
    op = sequence()
    calls = run(backend, op, sequence_inputs(op, batch, 4, 5, 40), steps=4)
    assert kernels(calls) == 1
    assert f", 0, {4 if batch > 1 else 1}>" in kernel_name(calls[-1])


def test_plans_of_launches() -> None:
    """Launch plans for 132 multiprocessors follow from units, directions, batch and the number of rounds."""

    def plan(units: int, directions: int, batch: int, rounds: int, use_registers: bool = True) -> tuple[Any, ...]:
        found = _recurrence.Launches.of(units, directions, batch, rounds, 132, use_registers)
        return found.together, found.registers, found.sequences, found.units, found.grid

    assert plan(256, 1, 1, 25) == (True, 8, 1, 8, (32, 1, 1))
    assert plan(512, 2, 1, 100) == (True, 16, 1, 8, (64, 2, 1))
    assert plan(512, 1, 9, 100) == (True, 16, 1, 8, (64, 1, 2))
    assert plan(1024, 1, 1, 100) == (True, 32, 1, 8, (128, 1, 1))
    assert plan(1024, 2, 1, 100) == (True, 0, 1, 8, (128, 2, 1))
    assert plan(2048, 1, 1, 100) == (True, 0, 1, 8, (256, 1, 1))
    assert plan(2048, 1, 8, 100) == (False, 0, 4, 8, (256, 1, 2))
    assert plan(512, 1, 1, 100, use_registers=False) == (True, 0, 1, 8, (64, 1, 1))
    assert plan(512, 1, 1, 1) == (False, 0, 1, 2, (256, 1, 1))
    assert plan(512, 1, 6, 1) == (False, 0, 4, 4, (128, 1, 2))
    assert plan(2048, 1, 1, 1) == (False, 0, 1, 8, (256, 1, 1))


@pytest.mark.parametrize("sequence", [LSTMSequence, GRUSequence])
def test_without_lengths_and_bias(sequence: Any, backend: CudaBackend) -> None:
    """Without lengths, all steps count; with no steps, the last state is the initial one."""
    op = sequence(direction="reverse")
    shapes = sequence_inputs(op, 2, 3, 5, 8)
    for steps in (3, 0):
        given = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
        given[0] = given[0][:, :steps]
        arrays: list[Any] = [*given[: 1 + op.states], None, *given[2 + op.states : -1], None]
        wanted = op.evaluate(NUMPY, *arrays)
        outputs = [cupy_emu.empty(y.shape, np.float32) for y in wanted]
        workspace = [cupy_emu.empty((max(1, 2 * steps * op.gates * 8),), np.float32)]
        launcher = Launcher(backend.stream, backend.blas)
        device = [None if x is None else cupy_emu.asarray(x) for x in arrays]
        assert op.cuda(launcher, device, outputs, workspace) is None
        for call in launcher.calls:
            call()
        for found, want in zip(outputs, wanted):
            np.testing.assert_allclose(found.get(), want, 2e-5, 2e-5)


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
@pytest.mark.parametrize("sequence", [LSTMSequence, GRUSequence])
def test_orders_of_threads(order: Any, sequence: Any, backend: CudaBackend) -> None:
    op = sequence()
    with cupy_emu.thread_order(order):
        run(backend, op, sequence_inputs(op, 1, 4, 5, 33), steps=4)


def test_sequences_of_swapped_axes(backend: CudaBackend) -> None:
    """x, y and the states have the layout of an iterator over the first axis."""
    op = LSTMSequence()
    n, steps, d, hidden = 2, 4, 5, 8
    shapes = sequence_inputs(op, n, steps, d, hidden)
    outputs = [
        cupy_emu.empty((steps, 1, n, hidden), np.float32).transpose(2, 1, 0, 3),
        *(cupy_emu.empty((1, n, hidden), np.float32).swapaxes(0, 1) for _ in range(2)),
    ]
    run(backend, op, shapes, steps=steps, outputs=lambda _: outputs)


def test_declines(backend: CudaBackend) -> None:
    launcher = Launcher(backend.stream, backend.blas)
    op = LSTMCell()
    integers = [cupy_emu.empty(s, np.int32) for s in cell_inputs(op, 1, 4, 4)]
    assert op.cuda(launcher, integers, integers[1:3], ()) is NotImplemented
    empty = [cupy_emu.empty(s, np.float32) for s in cell_inputs(op, 0, 4, 4)]
    assert op.cuda(launcher, empty, empty[1:3], ()) is NotImplemented


def test_numbers_of_gates() -> None:
    """The numbers of gates and biases are those in the kernel."""
    assert (LSTM.gates, GRU.gates, RNN.gates) == (4, 3, 1)
    assert (GRUCell(linear_before_reset=True).bias_rows(), GRUCell().bias_rows()) == (4, 3)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    f32, f64, f16, bf16 = "float", "double", "__half", "__nv_bfloat16"
    expressions = [
        f"recurrent<{t}, {x}, int, {cell}, {k}, {b}>"
        for t, x, k, b in (
            (f32, f32, 2, 1),
            (f32, f32, 8, 1),
            (f16, f32, 16, 1),
            (f32, f32, 32, 1),
            (f32, f32, 0, 1),
            (bf16, bf16, 0, 1),
            (bf16, f32, 0, 1),
            (f16, f16, 0, 4),
            (f16, f32, 0, 4),
            (f32, f32, 0, 4),
            (f64, f64, 0, 4),
        )
        for cell in ("LSTM", "GRU", "GRU_LINEAR", "RNN")
    ]
    expressions += ["recurrent<__half, float, long long, LSTM, 32, 1>"]
    expressions = to_compile("recurrent.cu", expressions)
    usage = nvrtc.compile_file("recurrent.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
    for name, found in usage.items():
        k, b = map(int, re.findall(r"Li(\d+)E", name)[-2:])
        assert found.registers * 256 * _recurrence.resident(k, b) <= 65536
