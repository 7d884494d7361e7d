"""Sequences of recurrent layers on tensor cores, on the emulated device against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.sequence._recurrence_mma import MmaTiling, block_sizes
from ovgpu.ops.sequence.recurrent import GRUSequence, LSTMSequence, RNNSequence
from ovgpu.runtime.backend import RoundingCall
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, replay, run_calls
from .test_recurrent import TOLERANCE, sequence_inputs

Array = np.ndarray[Any, Any]
F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
CUSTOM = {
    "activations": ("hardsigmoid", "relu", "sigmoid"),
    "clip": 0.4,
    "activations_alpha": (0.3,),
    "activations_beta": (0.4,),
}
CELLS: list[tuple[Any, dict[str, Any]]] = [
    (LSTMSequence, {}), (LSTMSequence, CUSTOM),
    (GRUSequence, {"linear_before_reset": True}),
    (GRUSequence, {"linear_before_reset": True, "activations": ("sigmoid", "relu"), "clip": 0.5}),
    (RNNSequence, {}), (RNNSequence, {"activations": ("relu",), "clip": 1.0}),
]  # fmt: skip
PLAIN = [CELLS[0], CELLS[2], CELLS[4]]


def rounded(x: Array, kind: np.dtype[Any]) -> Array:
    """Return x [f32], rounded to a 16-bit type, or to TF32 for f32: to nearest, halfway cases away from zero. For f64,
    it is not rounded."""
    if kind.itemsize == 8:
        return x
    if kind != F32:
        return x.astype(kind).astype(np.float32)
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


class Product:
    """The right operand of ``h @ r.T``, which rounds both operands."""

    __array_ufunc__ = None

    def __init__(self, r: Array, kind: np.dtype[Any]) -> None:
        self.r, self.kind = r, kind

    @property
    def T(self) -> Product:
        return Product(self.r.T, self.kind)

    def __getitem__(self, rows: slice) -> Product:
        return Product(self.r[rows], self.kind)

    def __rmatmul__(self, h: Array) -> Array:
        return rounded(h, self.kind) @ rounded(self.r, self.kind)


def reference(op: Any, kind: np.dtype[Any], inputs: list[Array]) -> list[Array]:
    """Return `evaluate` of a sequence whose products of R and h round their operands."""

    class Rounding(type(op)):  # type: ignore[misc]
        def step(self, xp: Any, xw: Any, state: Any, r: Any, extra: Any) -> Any:
            return super().step(xp, xw, state, Product(r, kind), extra)

    clone = Rounding.__new__(Rounding)
    clone.__dict__.update(op.__dict__)
    return [*clone.evaluate(NUMPY, *(x if x.dtype.kind == "i" else x.astype(np.float32) for x in inputs))]


def run(
    backend: CudaBackend,
    op: Any,
    kind: np.dtype[Any],
    batch: int,
    hidden: int,
    steps: int = 4,
    features: int = 5,
    lengths: Any = np.int32,
    padding: int = 0,
    time_major: bool = False,
) -> str:
    """Check a sequence eagerly and replayed; return the name of its only kernel. Rows of R are ``padding`` elements
    apart.

    The kernel rounds R and h as the reference does. Where h is next to a rounding boundary, they may round it to
    neighbours. A gate then differs by |r| ulp of h < 1: less than the tolerance of the type, or that of f16 for TF32.
    Without TF32, f32 is not rounded.
    """
    exact = kind == F32 and not backend.blas.tf32
    random = np.random.default_rng(3)
    shapes, scale = sequence_inputs(op, batch, steps, features, hidden), min(0.5, 2 / hidden**0.5)
    draws = [
        [
            random.integers(0, steps + 1, s).astype(lengths)
            if len(s) == 1
            else (random.standard_normal(s) * scale).astype(kind)
            for _ in range(3)
        ]
        for s in shapes
    ]
    if kind == F32 and not exact:  # cuBLAS rounds them to TF32
        for operands in (draws[0], draws[-3]):
            operands[:] = [rounded(x, kind) for x in operands]
    for draw in draws[1 + op.states]:
        draw[:2] = 0, steps

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array in whose memory the axis of steps, or of directions, comes first."""
        axes = [len(shape) - 2, *(i for i in range(len(shape)) if i != len(shape) - 2)]
        return cupy_emu.empty([shape[i] for i in axes], dtype).transpose(*(axes.index(i) for i in range(len(shape))))

    empty = array if time_major else cupy_emu.empty
    inputs = [(empty if i <= op.states else cupy_emu.empty)(d[0].shape, d[0].dtype) for i, d in enumerate(draws)]
    inputs[-2] = cupy_emu.empty((*shapes[-2][:2], hidden + padding), kind)[:, :, :hidden]
    rounding = np.dtype(np.float64) if exact else kind
    wanted = [[y.astype(kind) for y in reference(op, rounding, [d[i] for d in draws])] for i in range(3)]
    found = [empty(y.shape, kind) for y in wanted[0]]
    workspace = [cupy_emu.empty((wanted[0][0].size * op.gates,), np.float32)]
    launcher = Launcher(backend.stream, backend.blas)

    def record() -> list[Any]:
        assert op.cuda(launcher, inputs, found, workspace) is None
        return launcher.calls

    replay(
        backend,
        record,
        list(zip(inputs, draws)),
        found,
        lambda i: wanted[i],
        TOLERANCE["float16" if kind == F32 and not exact else kind.name],
    )
    (call,) = [call for call in launcher.calls if kernel_name(call).startswith("recurrent")]
    assert isinstance(call, RoundingCall) == (kind == F32 and not exact and "mma" in kernel_name(call))
    return kernel_name(call)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("kind", [F32, F16, BF16])
@pytest.mark.parametrize(("sequence", "attributes"), CELLS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_sequences(
    sequence: Any, attributes: dict[str, Any], direction: Any, kind: Any, tf32_backend: CudaBackend
) -> None:
    """All steps are one launch."""
    op = sequence(direction=direction, **attributes)
    assert run(tf32_backend, op, kind, 5, 24).startswith("recurrent_mma<")


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("sequence", "attributes"), CELLS)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_sequences_in_exact_f32(
    sequence: Any, attributes: dict[str, Any], direction: Any, backend: CudaBackend
) -> None:
    for batch, hidden in ((5, 24), (17, 136)):
        name = run(backend, sequence(direction=direction, **attributes), F32, batch, hidden)
        assert name.startswith("recurrent_mma<float,") and name.endswith(", true>")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("batch", [4, 8, 17, 33, 70])
@pytest.mark.parametrize(("sequence", "attributes"), PLAIN)
def test_batches(sequence: Any, attributes: dict[str, Any], batch: int, tf32_backend: CudaBackend) -> None:
    op = sequence(direction="reverse", **attributes)
    assert run(tf32_backend, op, F16, batch, 40).startswith("recurrent_mma<")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize(("sequence", "attributes"), PLAIN)
def test_few_multiprocessors(
    sequence: Any,
    attributes: dict[str, Any],
    multiprocessors: int,
    tf32_backend: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block has up to 4 tiles of rows and 64 sequences."""
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    assert run(tf32_backend, sequence(**attributes), F32, 70, 48, steps=3).startswith("recurrent_mma<")


@pytest.mark.drawn(6)
@pytest.mark.parametrize("hidden", [8, 16, 136, 520])
@pytest.mark.parametrize(("sequence", "attributes"), PLAIN)
def test_hidden_sizes(sequence: Any, attributes: dict[str, Any], hidden: int, tf32_backend: CudaBackend) -> None:
    """Rows have less than a part per warp, or several."""
    for kind in (F32, BF16):
        name = run(tf32_backend, sequence(**attributes), kind, 9, hidden, steps=3)
        assert f", {-(-hidden * kind.itemsize // 512)}, " in name


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("kind", "hidden", "direction"), [(F32, 512, "forward"), (F16, 512, "forward"), (F16, 256, "bidirectional")]
)
def test_hundreds_of_units(kind: Any, hidden: int, direction: Any, tf32_backend: CudaBackend) -> None:
    """Blocks on 128 multiprocessors hold 64 rows of R, and read h of 8 sequences."""
    name = run(tf32_backend, LSTMSequence(direction=direction), kind, 32, hidden, steps=2)
    assert name.endswith(f", {hidden * kind.itemsize // 512}, 4, 1>")


def test_hundreds_of_units_in_exact_f32(backend: CudaBackend) -> None:
    """Rows of R take twice the registers."""
    assert run(backend, LSTMSequence(), F32, 32, 512, steps=2).endswith(", 4, 2, 2, true>")


def steps_of(backend: CudaBackend, r: Array, h: Array, steps: int = 4) -> Array:
    """Return all h [N, 1 + T, H] of ``h = relu(R h)`` from products of exact f32 on tensor cores."""
    op, (batch, hidden) = RNNSequence(activations=("relu",)), h.shape
    given = [np.zeros((batch, steps, 8), np.float32), h[:, None], None, np.zeros((1, hidden, 8), np.float32), r[None]]
    found = [cupy_emu.empty((batch, 1, *s, hidden), np.float32) for s in ((steps,), ())]
    launcher = Launcher(backend.stream, backend.blas)
    inputs = [*(None if x is None else cupy_emu.asarray(x) for x in given), None]
    assert op.cuda(launcher, inputs, found, [cupy_emu.empty((batch * steps * hidden,), np.float32)]) is None
    assert kernel_name(launcher.calls[-1]).endswith(", true>")
    run_calls(launcher.calls)
    return np.concatenate([h[:, None], found[0].get()[:, 0]], 1)


def test_errors_of_exact_products(backend: CudaBackend) -> None:
    """They are less than 2^-20 of the sum of the products' absolute values, whatever the sizes of the operands."""
    random = np.random.default_rng(7)
    for hidden, scale in ((24, 1.0), (136, 1e-20), (520, 1e20)):
        r = (random.standard_normal((hidden, hidden)) * 2.0 ** random.integers(-9, 2, (hidden, hidden))).astype(
            np.float32
        )
        h = (scale * np.abs(random.standard_normal((9, hidden)))).astype(np.float32)
        found = steps_of(backend, r, h).astype(np.float64)
        before, after = found[:, :-1], found[:, 1:]
        wanted, whole = np.maximum(before @ r.T.astype(np.float64), 0), before @ np.abs(r.T).astype(np.float64)
        assert (np.abs(after - wanted) <= 2.0**-20 * whole).all() and (after > 0).any()


def test_infinities_in_exact_products(backend: CudaBackend) -> None:
    """The small numbers into which f32 are split do not turn them into NaN."""
    random = np.random.default_rng(8)
    for place in ("r", "h"):
        r, h = (np.abs(random.standard_normal(s)).astype(np.float32) for s in ((24, 24), (9, 24)))
        (r if place == "r" else h)[3, 5] = np.inf
        found = steps_of(backend, r, h, 2)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isinf(found[:, 1]), np.isinf(h @ r.T))
        assert np.isinf(found).any() and not np.isnan(found[:, 1]).any()


def test_passes(tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps load h in several passes where registers cannot hold all of it."""
    monkeypatch.setattr(MmaTiling, "of", lambda *_: MmaTiling(5, 2, 4, (3, 1, 1)))
    assert "5, 2, 4>" in run(tf32_backend, LSTMSequence(), F32, 20, 20, steps=3)
    monkeypatch.setattr(MmaTiling, "of", lambda *_: MmaTiling(8, 1, 8, (2, 1, 1)))
    assert "8, 1, 8>" in run(tf32_backend, RNNSequence(), F32, 20, 20, steps=3)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("order", ["ascending", "descending", 7])
@pytest.mark.parametrize(("sequence", "attributes"), PLAIN)
def test_orders_of_threads(order: Any, sequence: Any, attributes: dict[str, Any], tf32_backend: CudaBackend) -> None:
    """Each direction and group of sequences has its own barrier."""
    op = sequence(direction="bidirectional", **attributes)
    with cupy_emu.thread_order(order):
        assert run(tf32_backend, op, F32, 17, 24).startswith("recurrent_mma<")


@pytest.mark.parametrize(("sequence", "attributes"), PLAIN)
def test_layouts(sequence: Any, attributes: dict[str, Any], tf32_backend: CudaBackend) -> None:
    """Rows of R are padded; x and y have the steps first, the states the directions; lengths have 64 bits."""
    op = sequence(direction="bidirectional", **attributes)
    name = run(tf32_backend, op, F16, 5, 24, lengths=np.int64, padding=8, time_major=True)
    assert name.startswith("recurrent_mma<__half, long long,")


def test_exact_products(tf32_backend: CudaBackend) -> None:
    """Small integers show each element that is read from a wrong place."""
    op = RNNSequence(activations=("relu",), clip=7.0)
    random = np.random.default_rng(5)
    for kind, hidden in ((F32, 136), (BF16, 136)):
        given = [random.integers(-2, 3, s) for s in sequence_inputs(op, 12, 6, 3, hidden)]
        given[2], given[4] = given[2] + 4, given[4] * (random.random(given[4].shape) < 0.1)
        arrays = [x.astype(np.int32 if x.ndim == 1 else kind) for x in given]
        found = [cupy_emu.empty(s, kind) for s in ((12, 1, 6, hidden), (12, 1, hidden))]
        launcher = Launcher(tf32_backend.stream, tf32_backend.blas)
        workspace = [cupy_emu.empty((12 * 6 * hidden,), np.float32)]
        assert op.cuda(launcher, [cupy_emu.asarray(x) for x in arrays], found, workspace) is None
        assert kernel_name(launcher.calls[-1]).startswith("recurrent_mma<")
        run_calls(launcher.calls)
        for y, want in zip(found, op.evaluate(NUMPY, *(x if x.ndim == 1 else x.astype(np.float32) for x in arrays))):
            np.testing.assert_array_equal(y.get().astype(np.float32), want)
            assert len(np.unique(want)) > 5


def test_without_lengths_and_bias(tf32_backend: CudaBackend) -> None:
    """Lengths and the bias are optional."""
    op = LSTMSequence(direction="bidirectional")
    shapes = sequence_inputs(op, 6, 3, 5, 16)
    given: list[Any] = [np.random.default_rng(i).standard_normal(s).astype(F16) for i, s in enumerate(shapes)]
    given[3] = given[6] = None
    wanted = op.evaluate(NUMPY, *(x if x is None else x.astype(np.float32) for x in given))
    found = [cupy_emu.empty(y.shape, F16) for y in wanted]
    launcher = Launcher(tf32_backend.stream, tf32_backend.blas)
    inputs = [None if x is None else cupy_emu.asarray(x) for x in given]
    assert op.cuda(launcher, inputs, found, [cupy_emu.empty((wanted[0].size * 4,), np.float32)]) is None
    assert kernel_name(launcher.calls[-1]) == "recurrent_mma<__half, int, LSTM, 1, 1, 1>"
    run_calls(launcher.calls)
    for y, want in zip(found, wanted):
        np.testing.assert_allclose(y.get().astype(np.float32), want, 2e-3, 2e-3)  # h is rounded for each product


FALLBACKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "few-sequences": (LSTMSequence(), F16, {"batch": 3}),
    "reset-before-the-product": (GRUSequence(), F16, {}),
    "rows-of-no-16-bytes": (LSTMSequence(), F16, {"hidden": 20}),
    "unaligned-rows": (LSTMSequence(), F16, {"padding": 4}),
    "one-step": (LSTMSequence(), F16, {"steps": 1}),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_fallbacks(case: str, tf32_backend: CudaBackend) -> None:
    op, kind, options = FALLBACKS[case]
    assert run(tf32_backend, op, kind, **{"batch": 5, "hidden": 24, **options}).startswith("recurrent<")


def test_f32_and_f64(backend: CudaBackend) -> None:
    names = []
    for kind in (F32, np.dtype(np.float64)):
        op = RNNSequence()
        shapes = sequence_inputs(op, 5, 3, 4, 16)
        inputs = [cupy_emu.empty(s, np.int32 if len(s) == 1 else kind) for s in shapes]
        launcher = Launcher(backend.stream, backend.blas)
        found = [cupy_emu.empty((5, 1, *s), kind) for s in ((3, 16), (16,))]
        assert op.cuda(launcher, inputs, found, [cupy_emu.empty((5 * 3 * 16,), kind)]) is None
        names.append(kernel_name(launcher.calls[-1]).partition("<")[0])
    assert names == ["recurrent_mma", "recurrent"]


def test_older_cards(tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "capability", 75)
    assert run(tf32_backend, LSTMSequence(), F16, 5, 24).startswith("recurrent<")


def test_blocks_that_do_not_fit_together(tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = Launcher.fits
    monkeypatch.setattr(Launcher, "fits", lambda self, file, *more: "mma" not in file and fits(self, file, *more))
    assert run(tf32_backend, LSTMSequence(), F16, 5, 24).startswith("recurrent<")


def test_plans() -> None:
    """Plans for 132 multiprocessors follow from gates, the bytes of a row, units, directions and batch."""

    def plan(gates: int, itemsize: int, hidden: int, directions: int, batch: int, exact: bool = False) -> Any:
        found = MmaTiling.of(gates, hidden * itemsize, hidden, directions, batch, 132, exact)
        return found and (found.steps, found.tiles, found.groups, found.grid)

    assert plan(4, 4, 512, 1, 8) == (4, 1, 1, (128, 1, 1))
    assert plan(4, 4, 512, 1, 32) == (4, 4, 1, (32, 1, 4))
    assert plan(4, 2, 512, 1, 32) == (2, 4, 1, (32, 1, 4))
    assert plan(4, 4, 512, 2, 32) == (4, 4, 2, (32, 2, 2))
    assert plan(4, 4, 512, 1, 128) == (4, 2, 8, (64, 1, 2))
    assert plan(4, 4, 1024, 1, 32) == (8, 2, 4, (128, 1, 1))
    assert plan(4, 2, 1024, 1, 32) == (4, 4, 2, (64, 1, 2))
    assert plan(3, 2, 256, 1, 16) == (1, 1, 1, (52, 1, 2))
    assert plan(1, 2, 256, 1, 64) == (1, 1, 1, (16, 1, 8))
    assert plan(4, 4, 1028, 1, 32) is None
    assert plan(4, 4, 1024, 2, 64)[3] == (128, 2, 2)  # too many blocks: the launch asks whether they fit
    assert plan(4, 4, 512, 1, 32, exact=True) == (4, 2, 2, (64, 1, 2))
    assert plan(4, 4, 256, 2, 32, exact=True) == (2, 4, 1, (16, 2, 4))
    assert plan(4, 4, 1024, 1, 32, exact=True) == (8, 1, 2, (256, 1, 2))


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_plans_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    """All plans for f32 rows of 8 parts, f16 rows of 2 parts and exact f32 rows of 4 parts compile without spills."""
    expressions = [
        f"recurrent_mma<{kind}, int, {cell}, {steps}, {m}, {n}{', true' if exact else ''}>"
        for kind, steps, exact in (("float", 8, False), ("__half", 2, False), ("float", 4, True))
        for cell, units in (("LSTM", 4), ("GRU_LINEAR", 5), ("RNN", 16))
        for m, n in block_sizes(steps, units, exact)
    ]
    expressions = to_compile("recurrent_mma.cu", expressions)
    usage = nvrtc.compile_file("recurrent_mma.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
