"""Generated elementwise kernels: one op, or a chain of them whose intermediate values stay in registers.

A kernel traverses the output in vectors of V neighbouring elements, of 16 bytes where the layouts allow it. Axes are
collapsed to the fewest that serve all operands. An input that is broadcast along the last axis is loaded once per
vector. Extents and strides are arguments, so that one kernel serves all shapes of a form. Intermediate values are
rounded to their own dtypes, as if they were stored in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ovgpu.backends.cuda import sources
from ovgpu.backends.cuda.kernels import NO_FMA_FLAGS, Kernel
from ovgpu.ops.base.elementwise import cuda_body
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, Axes, strides_of
from ovgpu.ops.fused._elementwise import Chain, cuda_literal, f32_literals
from ovgpu.types import Type

_C = {
    "f2": "__half",
    "f4": "float",
    "f8": "double",
    "i1": "signed char",
    "i2": "short",
    "i4": "int",
    "i8": "long long",
    "u1": "unsigned char",
    "u2": "unsigned short",
    "u4": "unsigned int",
    "u8": "unsigned long long",
    "b1": "bool",
}
Launch = tuple[Any, tuple[int, ...], tuple[int, ...], Sequence[Any]]  # kernel, grid, block, arguments

MAX_VECTOR = 8  # elements
MIN_VECTORIZED_ELEMENTS = 1 << 16  # with fewer, each thread takes one element, so that all multiprocessors get threads
MIN_UNROLLED_ELEMENTS = 1 << 22  # from here on, each thread takes several vectors


class NoKernelError(Exception):
    """There is no kernel for elements of a dtype: the op is evaluated by CuPy or NumPy instead."""


def c_type(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ type of a dtype's elements. NoKernelError if kernels do not compute with them."""
    if not is_plain(dtype):
        raise NoKernelError(f"kernels do not compute with {dtype}")
    return "__nv_bfloat16" if dtype.name == "bfloat16" else _C[f"{dtype.kind}{dtype.itemsize}"]


@dataclass(frozen=True)
class Form:
    """Form of a kernel: number of axes, elements per vector, vectors per thread, and C++ type of indices.

    ``broadcast`` tells for each input whether it is broadcast along the last axis.
    """

    rank: int
    vector: int
    unroll: int
    index: str
    broadcast: tuple[bool, ...]


class Generated(Kernel):
    """A generated kernel. ``form`` is only for inspection. Its operations are rounded one by one, without fused
    multiply-adds."""

    def __init__(self, name: str, source: str, form: Form) -> None:
        super().__init__(name, source, f"the generated kernel {name}", exported=True, flags=NO_FMA_FLAGS)
        self.form = form


class ArrayLayout(NamedTuple):
    """Layout of an array in memory. ``misalignment`` is its address modulo 16, ``strides`` are in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    misalignment: int


def launch(chain: Chain, inputs: Sequence[Array], output: Array) -> Launch:
    """Return the launch that writes ``output``, which is not empty, from inputs that broadcast to it."""
    arrays = (*inputs, output)
    layouts = tuple([ArrayLayout(x.shape, x.strides, x.dtype, x.data.ptr % 16) for x in arrays])
    kernel, grid, numbers = _planned(chain, layouts)
    return kernel, grid, (THREADS,), (*arrays, *numbers)


@lru_cache(maxsize=4096)
def _planned(chain: Chain, arrays: tuple[ArrayLayout, ...]) -> tuple[Kernel, tuple[int, ...], tuple[Any, ...]]:
    """Return the kernel, the grid, and the arguments other than arrays. Cached: layers often have equal layouts."""
    form, axes, count = plan(arrays)
    *inputs, output = arrays
    kernel = _kernel(chain, tuple(x.dtype for x in inputs), output.dtype, form)
    numbers = axes.numbers(count, prod(output.shape))
    return kernel, (-(-count // (THREADS * form.unroll)),), (axes.packed(form.rank), *numbers)


def plan(arrays: Sequence[ArrayLayout]) -> tuple[Form, Axes, int]:
    """Return the kernel's form for inputs and an output, the axes in vectors, and the number of vectors."""
    output = arrays[-1]
    output_strides = strides_of(output)
    order = sorted(range(len(output_strides)), key=lambda i: -abs(output_strides[i]))  # of the output's memory
    strides = [strides_of(x, output.shape) for x in arrays]
    axes = Axes.collapse([output.shape[i] for i in order], *([s[i] for i in order] for s in strides))
    if not axes.extents:
        axes = Axes((1,), tuple((1,) for _ in arrays))
    size = axes.size
    vector = _vector(axes, arrays) if size >= MIN_VECTORIZED_ELEMENTS else 1
    unroll = 1 if size < MIN_UNROLLED_ELEMENTS else 2 if vector > 1 else 4
    broadcast = tuple(s[-1] == 0 for s in axes.strides[:-1])
    extents = (*axes.extents[:-1], -(-axes.extents[-1] // vector))
    axes = Axes(extents, tuple((*s[:-1], s[-1] * vector) for s in axes.strides), axes.span + THREADS * 4 * MAX_VECTOR)
    return Form(len(extents), vector, unroll, axes.index, broadcast), axes, prod(extents)


def _vector(axes: Axes, arrays: Sequence[ArrayLayout]) -> int:
    """Return the largest number of elements, a power of two, that all loads and stores may take at once."""
    vectorized = [(x, s) for x, s in zip(arrays, axes.strides) if s[-1]]
    if not axes.strides[-1][-1] == 1 or any(s[-1] != 1 for _, s in vectorized):
        return 1
    vector: int = min(MAX_VECTOR, 16 // max(x.dtype.itemsize for x, _ in vectorized))
    outer = [s for _, steps in vectorized for s in steps[:-1]]
    rows = axes.extents[-1] if len(axes.extents) > 1 else 0  # the end of a single row is guarded
    while vector > 1 and (
        any(n % vector for n in (rows, *outer))
        or any(x.misalignment % (vector * x.dtype.itemsize) for x, _ in vectorized)
    ):
        vector //= 2
    return vector


@cache
def _kernel(chain: Chain, inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any], form: Form) -> Generated:
    name = "_".join(["ovgpu", *dict.fromkeys(part.op.name.lower() for part in chain.parts)])[:80]
    return Generated(name, source(name, chain, inputs, output, form), form)


def source(name: str, chain: Chain, inputs: Sequence[np.dtype[Any]], output: np.dtype[Any], form: Form) -> str:
    """Return the kernel's CUDA C++ source, which defines nothing else: a program may have several."""
    dtypes = [Type.of(dtype) for dtype in inputs]
    parameters = [f"const {c_type(d)}* p{i}" for i, d in enumerate(inputs)] + [f"{c_type(output)}* out"]
    widths = [1 if b else form.vector for b in form.broadcast]
    values = [f"x{i}[u][{0 if b else 'e'}]" for i, b in enumerate(form.broadcast)]
    valid = "left(size - g * V)" if form.rank == 1 else "V"
    declared = [f"{c_type(d)} x{i}[U][{w}];" for i, (d, w) in enumerate(zip(inputs, widths))]
    loads = [
        f"load(p{i} + offset(axes, at[u], {i}), {'1' if b else 'n'}, x{i}[u]);" for i, b in enumerate(form.broadcast)
    ]
    steps = statements(chain, dtypes, values)
    return f"""#include "elementwise.cuh"

extern "C" __global__ void __launch_bounds__({THREADS})
    {name}({", ".join(parameters)}, const Axes<{form.index}, {form.rank}, {len(inputs) + 1}> axes,
           {form.index} count, {form.index} size) {{
  using I = {form.index};
  start_next_launch();
  wait_for_launches();
  constexpr int R = {form.rank}, V = {form.vector}, U = {form.unroll};  // axes, a vector's elements, a thread's vectors
  const auto left = [](I n) {{ return n < V ? int(n) : V; }};
  const I first = I(blockIdx.x) * (I(blockDim.x) * U) + threadIdx.x;
  I at[U][R];
  {(chr(10) + "  ").join(declared)}
#pragma unroll
  for (int u = 0; u < U; u++) {{
    const I g = first + u * I(blockDim.x);
    if (g < count) {{
      const int n = {valid};
      unravel(axes, g, at[u]);
      {(chr(10) + "      ").join(loads)}
    }}
  }}
#pragma unroll
  for (int u = 0; u < U; u++) {{
    const I g = first + u * I(blockDim.x);
    if (g < count) {{
      const int n = {valid};
      {c_type(output)} y[V];
#pragma unroll
      for (int e = 0; e < V; e++) {{
        {(chr(10) + "        ").join(steps)}
      }}
      store(y, n, out + offset(axes, at[u], {len(inputs)}));
    }}
  }}
}}
// headers: {sources.headers()}
"""


@cache
def functor(
    name: str,
    chain: Chain,
    inputs: tuple[np.dtype[Any], ...],
    max_arrays: int,
    header: str = "elementwise.cuh",
    result: np.dtype[Any] | None = None,
    numbers: int = 0,
) -> str:
    """Return the source of a struct whose `of` computes the chain.

    The arguments of `of` are a value, the chain's first input; a functor ``at`` that maps the number of an array to the
    index of its element; and ``max_arrays`` pointers to the other inputs. It returns ``result``, the chain's type, by
    default the value's. ``header`` may be common.cuh for kernels without strided axes; it lacks the functions that
    FakeConvert calls. The first ``numbers`` literals of f32 are arguments of the kernel: the source reads them by
    ``at.number(n)``, so that chains which differ in them share one kernel.
    """
    value_type, result_type = c_type(inputs[0]), c_type(inputs[0] if result is None else result)
    values = ["x", *(f"static_cast<const {c_type(d)}*>(p{i})[at({i})]" for i, d in enumerate(inputs[1:]))]
    given = {i: f"at.number({n})" for n, i in enumerate(f32_literals(chain)[:numbers])}
    steps = statements(chain, [Type.of(dtype) for dtype in inputs], values, "y", given)
    return f"""#include "{header}"

struct {name} {{
  template <class At>
  static __device__ __forceinline__ {result_type} of({value_type} x, const At& at, {
        ", ".join(f"const void* p{i}" for i in range(max_arrays))
    }) {{
    {result_type} y;
    {(chr(10) + "    ").join(steps)}
    return y;
  }}
}};

"""


def statements(
    chain: Chain,
    dtypes: Sequence[Type],
    values: Sequence[str],
    target: str = "y[e]",
    given: dict[int, str] | None = None,
) -> list[str]:
    """Return the C++ statements that compute ``target``. ``values`` are the expressions of the inputs' elements;
    ``given`` has expressions that replace some of the chain's literals, by the index of the literal.

    Each op's statements are a block of their own, and must not use the names `in_0`, `v_0`, ... of the chain.
    """
    lines = [f"const {c_type(dtype.storage)} in_{i} = {value};" for i, (dtype, value) in enumerate(zip(dtypes, values))]
    variables = [(dtype, f"in_{i}") for i, dtype in enumerate(dtypes)]
    literals = {i: cuda_literal(data, dtype) for i, (dtype, data) in enumerate(chain.literals)} | (given or {})
    variables += [(dtype, literals[i]) for i, (dtype, _) in enumerate(chain.literals)]
    for index, part in enumerate(chain.parts):
        arguments = [variables[i] for i in part.operands]
        dtype = part.type_of([d for d, _ in arguments])
        body = cuda_body(part.op, [d for d, _ in arguments], [v for _, v in arguments], f"v_{index}")
        lines += [f"{c_type(dtype.storage)} v_{index};  // {part.op.name}", f"{{ {body} }}"]
        variables.append((dtype, f"v_{index}"))
    return [*lines, f"{target} = {variables[-1][1]};"]
