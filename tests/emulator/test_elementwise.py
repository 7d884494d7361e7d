"""ElementwiseKernel: CuPy's parameter strings, broadcasting, types and checks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from .elementwise import collapse
from .toolchain import EmulatorError

RNG = np.random.default_rng(3)


def test_broadcasting_and_strides() -> None:
    x = RNG.standard_normal((4, 1, 5)).astype(np.float32)
    y = RNG.standard_normal((3, 1)).astype(np.float32)
    kernel = cp.ElementwiseKernel("T x, T y, float32 a", "T z", "z = a * x + y", "scaled_sum")
    expected = np.float32(2) * x + y
    np.testing.assert_array_equal(kernel(cp.asarray(x), cp.asarray(y), 2).get(), expected)
    out = cp.zeros((5, 3, 4), np.float32).transpose(2, 1, 0)
    assert kernel(cp.asarray(x), cp.asarray(y), 2, out) is out
    np.testing.assert_array_equal(out.get(), expected)
    reverse = kernel(cp.asarray(x)[::-1, :, ::-1], cp.asarray(y), np.float64(2))
    np.testing.assert_array_equal(reverse.get(), expected[::-1, :, ::-1])


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float64,
                                   ml_dtypes.bfloat16])  # fmt: skip
def test_type_variables(dtype: type) -> None:
    x = RNG.integers(0, 2, 33).astype(dtype)
    kernel = cp.ElementwiseKernel("T x", "T y, bool zero", "y = x; zero = x == T(0)", "copy")
    y, zero = kernel(cp.asarray(x))
    np.testing.assert_array_equal(y.get(), x)
    np.testing.assert_array_equal(zero.get(), x == 0)


def test_16_bit_arithmetic_is_in_float() -> None:
    x = RNG.standard_normal(64).astype(np.float16)
    kernel = cp.ElementwiseKernel("float16 x", "float16 y, float32 w", "w = x * x + x; y = w", "square_plus")
    y, w = kernel(cp.asarray(x))
    wide = x.astype(np.float32) ** 2 + x.astype(np.float32)
    np.testing.assert_array_equal(w.get(), wide)
    np.testing.assert_array_equal(y.get(), wide.astype(np.float16))


def test_raw_arguments() -> None:
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    gather = cp.ElementwiseKernel("raw T x, int64 index", "T y", "y = x[index] + x.size()", "gather")
    index = np.array([5, 0, 23, 7])
    np.testing.assert_array_equal(gather(cp.asarray(x), cp.asarray(index)).get(), x.ravel()[index] + 24)
    strided = gather(cp.asarray(x)[:, ::2], cp.asarray(index % 12))
    np.testing.assert_array_equal(strided.get(), x[:, ::2].ravel()[index % 12] + 12)
    rows = cp.ElementwiseKernel("raw T x", "raw T y", "y[i] = x.shape()[0] * 100 + i", "rows")
    y = cp.zeros(3, np.float32)
    rows(cp.asarray(x), y, size=3)
    assert y.get().tolist() == [400, 401, 402]
    corner = cp.ElementwiseKernel("raw T x", "T y", "ptrdiff_t at[] = {i, 1}; y = x[at]", "corner")
    np.testing.assert_array_equal(corner(cp.asarray(x), cp.empty(4, np.float32)).get(), x[:, 1])


def test_loop_parts() -> None:
    kernel = cp.ElementwiseKernel(
        "T x",
        "T y",
        "y = twice(x) + base",
        "parts",
        loop_prep="const T base = 10",
        preamble="template <class T> __device__ T twice(T x) { return 2 * x; }",
        no_return=True,
        options=("-DUNUSED=1",),
    )
    y = cp.empty(3, np.int32)
    assert kernel(cp.arange(3, dtype=np.int32), y) is None
    assert y.get().tolist() == [10, 12, 14]


def test_functions_of_the_device() -> None:
    x = np.array([-1.5, 0.0, 0.3, np.nan, np.inf], np.float32)
    kernel = cp.ElementwiseKernel(
        "T x",
        "T e, T r, bool n, T m",
        "e = erf(x); r = rsqrt(x * x + 1); n = isnan(x) || isinf(x); m = max(x, T(0))",
        "functions",
    )
    e, r, n, m = (value.get() for value in kernel(cp.asarray(x)))
    np.testing.assert_allclose(e[:3], [-0.966105, 0, 0.328627], rtol=1e-5)
    np.testing.assert_allclose(r[:3], 1 / np.sqrt(x[:3] ** 2 + 1), rtol=1e-6)
    assert n.tolist() == [False, False, False, True, True]
    assert m.tolist() == [0, 0, np.float32(0.3), 0, np.inf]  # a number wins over NaN, as fmaxf does


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        ((), TypeError, "Wrong number of arguments for 'add'"),
        ((np.zeros(3, np.float32), 1.0), TypeError, "Unsupported type <class 'numpy.ndarray'>"),
        (("f8[3]", "f4[3]"), TypeError, "Type is mismatched"),
        (("f4[3]", "f4[4]"), ValueError, "shape mismatch"),
        (("f4[3]", "f4[3]", "f4[4]"), ValueError, "shape mismatch"),
        (("f4[1]", "f4[1]", "i4[1]"), TypeError, "Type is mismatched"),
        (("f4[2,3]", "f4[3]", "f4[3]"), ValueError, "Out shape is mismatched"),
        ((1.0, 2.0), ValueError, "Loop size is undecided"),
    ],
)
def test_arguments_that_do_not_fit(args: tuple[object, ...], error: type, match: str) -> None:
    def make(arg: object) -> object:
        if not isinstance(arg, str):
            return arg
        dtype, _, shape = arg[:-1].partition("[")
        return cp.zeros(tuple(map(int, shape.split(","))), dtype)

    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
    with pytest.raises(error, match=match):
        kernel(*map(make, args))


def test_inputs_cannot_be_written() -> None:
    x = cp.zeros(3, np.float32)
    for params in ("T x", "raw T x"):
        kernel = cp.ElementwiseKernel(params, "T y", "x = 1" if params == "T x" else "x[i] = 1", "writes")
        with pytest.raises(EmulatorError, match="read-only"):
            kernel(x, cp.empty(3, np.float32))


def test_a_name_is_a_keyword() -> None:
    with pytest.raises(ValueError, match="Can not use 'i'"):
        cp.ElementwiseKernel("T i", "T y", "y = i")
    with pytest.raises(ValueError, match="Invalid kernel name"):
        cp.ElementwiseKernel("T x", "T y", "y = x", "a b")


def test_empty_loop() -> None:
    kernel = cp.ElementwiseKernel("T x", "T y", "y = x", "nothing")
    assert kernel(cp.zeros((0, 4), np.float32)).shape == (0, 4)


def test_axes_that_merge() -> None:
    assert collapse((2, 3, 4), [(48, 16, 4), (12, 4, 1)]) == ((24,), [(4,), (1,)])
    assert collapse((2, 3, 4), [(48, 16, 4), (0, 4, 1)]) == ((2, 12), [(48, 4), (0, 1)])
    assert collapse((2, 1, 4), [(16, 0, 4)]) == ((8,), [(4,)])
    assert collapse((), [()]) == ((), [()])
