"""Checks of an op's `cuda` form on the emulated device: eager, then captured and replayed, against `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ovgpu.backends.cuda import kernels, rt, sources
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp

from .recorded import settle

Array = np.ndarray[Any, Any]
View = Callable[[Any], Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BF16, np.dtype(np.float64))
INTEGERS = tuple(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8))
ORDERS = ("ascending", "descending", 7)
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}


def whole(x: Any) -> Any:
    return x


def preload(file: str, *expressions: str) -> None:
    """Compile kernels of a file together, which is faster than one by one. Real GPUs cache them on disk instead."""
    cupy = rt.cupy()
    if not getattr(cupy, "is_emulated", False):
        return
    options = ("-std=c++17", f"-I{sources.folder()}")
    code, symbols = cupy.cuda.compiler.compile_using_nvrtc(sources.source(file), options, None, file, expressions)
    module = cupy.cuda.function.Module()
    module.load(code)
    for expression in expressions:
        kernel = kernels.of_file(file, expression)
        kernel._functions[id(cupy), cupy.cuda.get_device_id()] = module.get_function(symbols[expression])


def launches(op: Op, x: Any, host: Sequence[Array], outputs: Sequence[Any]) -> Launcher:
    """Return the launcher with the launches of the op's `cuda` form, which must not decline."""
    launcher = Launcher(cp.cuda.Stream(non_blocking=True), None)
    assert op.cuda is not None
    assert op.cuda(launcher, [x, *host], outputs, []) is not NotImplemented, "declined"
    return launcher


def check(
    op: Op,
    draw: Callable[[int], Array],
    host: Sequence[Any] = (),
    *,
    view: View = whole,
    out: View = whole,
    types: Sequence[Type] = (),
    inplace: bool = False,
    tol: float | None = None,
) -> int:
    """Compare the outputs for three draws of the input; return the number of kernels that one run launches.

    ``view`` maps the drawn array to the op's input, and ``out`` maps a larger array to output 0. ``host`` are the
    other inputs, and ``types`` the types of the outputs (default: the input's type).
    """
    values = [np.asarray(h) for h in host]
    drawn = draw(0)
    wanted = evaluate(op, NUMPY, [view(drawn), *values], types or [Type.of(drawn.dtype)])
    memory = cp.asarray(drawn)
    x = view(memory)
    outputs = [x] if inplace else [cp.empty(w.shape, w.dtype) for w in wanted]
    if out is not whole:
        outputs[0] = _laid_out(wanted[0], out)
    launcher = launches(op, x, values, outputs)

    def compare(draws: int) -> None:
        settle()
        expected = evaluate(op, NUMPY, [view(draw(draws)), *values], types or [Type.of(drawn.dtype)])
        for found, right in zip(outputs, expected, strict=True):
            same(found.get(), right, tol)

    settle()
    for call in launcher.calls:
        call()
    compare(0)
    stream = launcher.stream
    stream.begin_capture()
    for call in launcher.calls:
        call()
    graph = stream.end_capture()
    for draws in (1, 2):
        memory.set(draw(draws))
        settle()
        graph.launch(stream)
        compare(draws)
    assert graph.node_count == len(launcher.calls)
    return len(launcher.calls)


def _laid_out(like: Array, out: View) -> Any:
    """Return a device array of the shape of ``like`` that is a part of a larger one."""
    allocated = tuple(2 * n + 1 for n in like.shape)
    array = out(cp.empty(allocated, like.dtype))
    return array[tuple(slice(n) for n in like.shape)]


def same(found: Array, right: Array, tol: float | None = None) -> None:
    """Assert equal shapes, types, and values: exactly for integers, else within the type's tolerance."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, right)
        return
    tol = tol if tol is not None else TOLERANCE.get(found.dtype.name, 2e-5)
    np.testing.assert_allclose(found.astype(np.float64), right.astype(np.float64), rtol=tol, atol=tol)


def random(shape: Sequence[int], dtype: Any = np.float32, scale: float = 3.0) -> Callable[[int], Array]:
    """Return a function that draws an array for a seed: normal numbers, or integers within the type and ±1000."""
    dtype = np.dtype(dtype)

    def draw(seed: int) -> Array:
        rng = np.random.default_rng(seed)
        if dtype.kind == "b":
            return rng.random(shape) < 0.7
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return rng.integers(max(limits.min, -1000), min(limits.max, 1000), shape, dtype, endpoint=True)
        return (rng.standard_normal(shape) * scale).astype(dtype)

    return draw
