"""cupy.ElementwiseKernel: the same parameter strings and operation, compiled for the host."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_ops import View, check_here
from .kernel import ArrayArgument, Function, RawModule, StructArgument, launch
from .ndarray import ndarray
from .stream import Stream

# numpy's `l` and `q` are both 64 bits wide here.
C_TYPES = {
    "?": "bool", "b": "signed char", "B": "unsigned char", "h": "short", "H": "unsigned short", "i": "int",
    "I": "unsigned int", "l": "long long", "L": "unsigned long long", "q": "long long",
    "Q": "unsigned long long", "e": "float16", "f": "float", "d": "double",
}  # fmt: skip


def c_type(dtype: np.dtype[Any]) -> str:
    """Return the C type of a dtype. Raise TypeError if it has none."""
    name = "bfloat16" if dtype.name == "bfloat16" else C_TYPES.get(dtype.char)
    if name is None:
        raise TypeError(f"dtype {dtype} has no C type in an ElementwiseKernel")
    return name


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@dataclass(frozen=True)
class Param:
    """One entry of a parameter list: `[raw] type name`; a one-letter type is a type variable."""

    name: str
    type: str
    raw: bool

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return None if len(self.type) == 1 else _dtype(self.type)


def parse(text: str) -> tuple[Param, ...]:
    """Parse a parameter list. Raise ValueError if it is malformed."""
    params = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        words = entry.split()
        if len(words) < 2:
            raise ValueError(f"Syntax error: {entry}")
        unknown = set(words[:-2]) - {"raw", "_non_const"}
        if unknown:
            raise ValueError(f'Unknown keyword "{unknown.pop()}"')
        params.append(Param(words[-1], words[-2], "raw" in words[:-2]))
    return tuple(params)


def collapse(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge neighbouring axes that every array steps through evenly, and drop axes of extent 1."""
    new_shape: list[int] = []
    new_strides: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if new_shape and all(new[-1] == old[axis] * extent for new, old in zip(new_strides, strides)):
            new_shape[-1] *= extent
            for new, old in zip(new_strides, strides):
                new[-1] = old[axis]
        else:
            new_shape.append(extent)
            for new, old in zip(new_strides, strides):
                new.append(old[axis])
    return tuple(new_shape), [tuple(new) for new in new_strides]


def _int64s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def pack_array(view: View) -> ArrayArgument:
    """Return the bytes of a CArray."""
    return ArrayArgument(_int64s(view.ptr, view.size, *(view.shape or (0,)), *(view.strides or (0,))))


class ElementwiseKernel:
    """cupy.ElementwiseKernel(in_params, out_params, operation, name=..., ...)."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        reduce_dims: bool = True,
        preamble: str = "",
        no_return: bool = False,
        return_tuple: bool = False,
        *,
        loop_prep: str = "",
        after_loop: str = "",
        options: tuple[str, ...] = (),
    ) -> None:
        if not name.isidentifier():
            raise ValueError(f'Invalid kernel name: "{name}"')
        self.in_params, self.out_params = parse(in_params), parse(out_params)
        self.params = self.in_params + self.out_params
        self.nin, self.nout, self.nargs = len(self.in_params), len(self.out_params), len(self.params)
        if any(param.name == "i" for param in self.params):
            raise ValueError("Can not use 'i' as a parameter name")
        self.operation, self.name, self.preamble = operation, name, preamble
        self.loop_prep, self.after_loop, self.options = loop_prep, after_loop, options
        self.reduce_dims, self.no_return, self.return_tuple = reduce_dims, no_return, return_tuple
        self.sources: list[str] = []  # sources compiled so far, one per combination of types and ranks
        self._functions: dict[Any, Function] = {}

    def __call__(self, *args: Any, size: int = -1, stream: Stream | None = None, block_size: int = 128) -> Any:
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or {self.nargs} "
                f"(with outputs), but given {len(args)}."
            )
        for arg in args:
            if not isinstance(arg, (ndarray, bool, int, float, complex, np.generic)):
                raise TypeError(f"Unsupported type {type(arg)}")
            if isinstance(arg, ndarray):
                check_here(arg)
        outs = list(args[self.nin :])
        shape = self._loop_shape(args, size)
        types = self._types(args[: self.nin], outs)
        if not outs:
            if size == -1 and any(param.raw for param in self.out_params):
                raise ValueError("Output array size is Undecided")
            outs = [ndarray(shape, param.dtype or types[param.type]) for param in self.out_params]
        for param, out in zip(self.out_params, outs):
            if not isinstance(out, ndarray):
                raise TypeError("Output arguments type must be cupy.ndarray")
            if not param.raw and out.shape != shape:
                raise ValueError("Out shape is mismatched")
        if 0 not in shape:
            self._launch([*args[: self.nin], *outs], shape, types, stream, block_size)
        if self.no_return:
            return None
        return outs[0] if self.nout == 1 and not self.return_tuple else tuple(outs)

    def _loop_shape(self, args: tuple[Any, ...], size: int) -> tuple[int, ...]:
        looped = [arg.shape for param, arg in zip(self.params, args) if isinstance(arg, ndarray) and not param.raw]
        if size != -1:
            if looped:
                raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
            return (size,)
        if not looped:
            raise ValueError("Loop size is undecided.")
        return np.broadcast_shapes(*looped)

    def _types(self, ins: tuple[Any, ...], outs: list[Any]) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each type variable. CuPy does not convert, so a differing array raises TypeError."""
        types: dict[str, np.dtype[Any]] = {}
        named = [*zip(self.out_params, outs), *zip(self.in_params, ins)]
        for param, arg in named:
            if isinstance(arg, ndarray):
                expected = param.dtype or types.setdefault(param.type, arg.dtype)
                if arg.dtype != expected:
                    raise TypeError(f"Type is mismatched. {param.name} {arg.dtype} {expected} {param.type}")
        for param in self.params:
            if param.dtype is None:
                _ = types[param.type]  # KeyError, as in CuPy, when no array decides it
        return types

    def _launch(
        self,
        args: list[Any],
        shape: tuple[int, ...],
        types: dict[str, np.dtype[Any]],
        stream: Any,
        block_size: int,
    ) -> None:
        looped = [i for i, arg in enumerate(args) if isinstance(arg, ndarray) and not self.params[i].raw]
        strides = [_broadcast_strides(args[i]._view, shape) for i in looped]
        count = int(np.prod(shape, dtype=np.int64))
        if self.reduce_dims:
            shape, strides = collapse(shape, strides)
        reduced = dict(zip(looped, strides))
        packed: list[Any] = []
        signature: list[tuple[str, int | None]] = []
        for i, (param, arg) in enumerate(zip(self.params, args)):
            dtype = param.dtype or types[param.type]
            if isinstance(arg, ndarray):
                view = arg._view if param.raw else View(arg._view.ptr, shape, reduced[i], dtype)
                packed.append(pack_array(view))
                signature.append((c_type(dtype), len(view.shape)))
            else:
                packed.append(StructArgument(np.asarray(arg).astype(dtype).tobytes()))
                signature.append((c_type(dtype), None))
        packed.append(StructArgument(_int64s(count, *(shape or (0,)), *(0 for _ in shape or (0,)))))
        key = (tuple(signature), len(shape), tuple(sorted((k, c_type(v)) for k, v in types.items())))
        function = self._functions.get(key)
        if function is None:
            self.sources.append(self._source(*key))
            module = RawModule(self.sources[-1], options=self.options)
            function = self._functions[key] = module._function(self.name)
        launch(function, (-(-count // block_size),), (min(block_size, count),), packed, stream=stream)

    def _source(self, signature: Any, rank: int, types: Any) -> str:
        declared, bound = [], []
        for i, (param, (ctype, dims)) in enumerate(zip(self.params, signature)):
            const = "const " if i < self.nin else ""
            if dims is None:
                declared.append(f"{const}{ctype} {param.name}")
            elif param.raw:
                declared.append(f"{const}CArray<{ctype}, {dims}> {param.name}")
            else:
                declared.append(f"{const}CArray<{ctype}, {dims}> _raw_{param.name}")
                bound.append(f"{const}{ctype}& {param.name} = _raw_{param.name}[_ind.get()];")
        typedefs = "".join(f"typedef {ctype} {name};\n" for name, ctype in types)
        return (
            f"{typedefs}{self.preamble}\n"
            f'extern "C" __global__ void {self.name}({", ".join([*declared, f"CIndexer<{rank}> _ind"])}) {{\n'
            f"{self.loop_prep};\n"
            "const ptrdiff_t _first = static_cast<ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;\n"
            "const ptrdiff_t _step = static_cast<ptrdiff_t>(blockDim.x) * gridDim.x;\n"
            "for (ptrdiff_t i = _first; i < _ind.size(); i += _step) {\n"
            "_ind.set(i);\n" + "\n".join(bound) + f"\n{self.operation};\n}}\n{self.after_loop};\n}}\n"
        )


def _broadcast_strides(view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(shape) - len(view.shape)
    own = (0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides))
    return (*(0 for _ in range(missing)), *own)
