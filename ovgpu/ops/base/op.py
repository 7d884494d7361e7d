"""What an op is: one class per op version, with everything about the operation in one place.

    @op("Softmax", "opset8")
    class Softmax(Op):
        axis: int = 1                                  # the attributes: annotation and default are the schema

        def infer(self, x: Spec) -> tuple[Spec, ...]:  # element types and shapes, symbolic where not yet known
            ...

        def evaluate(self, xp, x):                     # the definition: NumPy or CuPy arrays in, fresh ones out
            ...

The rest of `Op` tells the planner what it may do, and gives faster forms that are checked against `evaluate`.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.symbolic import Int, Spec, product
from ovgpu.types import PartialShape, Type

if typing.TYPE_CHECKING:
    from ovgpu.ops.base.view import View

Array = Any  # numpy.ndarray or cupy.ndarray
Workspace = tuple[tuple[Type, tuple[Int, ...]], ...]


class Op:
    """An operation with its attributes; immutable. Subclass it under `op` to add one."""

    name: ClassVar[str]
    version: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]

    host_inputs: ClassVar[tuple[int, ...]] = ()
    """Inputs whose values are needed on the host: by `infer` (target shapes, axes) or as plain numbers.
    `evaluate` always gets them as NumPy arrays. ``-1`` stands for "this and all later inputs"."""

    layout: ClassVar[Literal["strided", "blas", "dense"]] = "strided"
    """Which inputs the fast forms take: any strides, unit stride in one of the last two axes, or contiguous."""

    strided_outputs: ClassVar[bool] = False
    """Whether the fast forms may write into outputs that are not contiguous (parts of a Concat)."""

    exact: ClassVar[bool] = False
    """Moves or compares bits and computes nothing: runs on storage types (f16, bf16, f8, i4 ...) as they are.
    Other ops see what `_storage.decode` makes of it (f32 and i8), and their results are rounded once."""

    takes_strings: ClassVar[bool] = False
    """Takes strings as well, although it is not `exact`."""

    supports_symbolic: ClassVar[bool] = False
    """`evaluate` also works on object arrays of symbolic integers (movement and integer arithmetic)."""

    effect: ClassVar[bool] = False
    """Has an effect beyond its outputs (state, random): never removed, merged or folded."""

    updates: ClassVar[dict[int, tuple[int, int]]] = {}
    """Outputs that are inputs, changed where they lie: the number of each, that of the input, and that of another one,
    whose elements are what changes. `evaluate` gives them in memory of their own, as of any op."""

    ir_names: ClassVar[dict[str, str]] = {}
    """What attributes are called in the IR whose names there are none of Python's."""

    def __init__(self, **values: Any) -> None:
        for f in declared(type(self)).values():
            default = f.default if f.default_factory is MISSING else f.default_factory()
            self.__dict__[f.name] = value = values.pop(f.name, default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs the attribute '{f.name}'")
        if values:
            raise TypeError(f"{type(self).__name__} has no attribute '{next(iter(values))}'")

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to '{name}': an op is immutable")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def check_types(self, inputs: Sequence[Spec | None]) -> None:
        """Raise `OpError` for strings, unless the op only moves elements or is a user's."""
        if self.exact or self.takes_strings or not is_own(type(self)):
            return
        if any(s is not None and s.type is Type.string for s in inputs):
            raise OpError("element type string is not a number")

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        """Specs of the outputs. Raises `OpError` for inputs that the specification does not allow.
        An optional input that is absent is None."""
        raise NotImplementedError

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Array, ...]:
        """The outputs, computed; `xp` is the adapter of NumPy or CuPy. Absent inputs are None."""
        raise NotImplementedError

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        """The outputs as views of the inputs' memory, where that is possible: one `View` each, else None."""
        return None

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        """Inputs whose memory output 0 may take over when nobody needs them later."""
        return ()

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Scratch buffers that the fast forms need: (type, shape) each."""
        return ()

    def kept(self) -> tuple[np.ndarray[Any, Any], ...]:
        """What an op with an effect remembers from one inference to the next, as it is at first: arrays of the
        compiled model, which come after the inputs when the op runs, and which it changes in place."""
        return ()

    # The fast forms: `numpy(k, inputs, outputs, workspace)` and `cuda(k, inputs, outputs, workspace)` record
    # with `k` the calls (kernels) that write `outputs`. They run once per binding, the calls at every inference.
    # A form may decline what it cannot do by returning NotImplemented; `evaluate` then does it.
    numpy: ClassVar[Callable[..., Any] | None] = None
    cuda: ClassVar[Callable[..., Any] | None] = None

    def propagate(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Sequence[Spec]:
        """The specs of outputs with their values, where those follow from known or symbolic input values."""
        values = [s.value for s in inputs if s is not None and s.value is not None]
        known = len(values) == len(inputs) > 0 and all(value.size <= SMALL_ELEMENTS for value in values)
        if not known or self.effect:
            return outputs
        if any(s.value is not None or s.shape is None or not _small(s) for s in outputs):
            return outputs
        symbolic = any(v.dtype == object for v in values)
        if symbolic:
            if not self.supports_symbolic or not all(_integral(s.type) for s in (*inputs, *outputs) if s is not None):
                return outputs
            values = [v if i in self.host_inputs or v.dtype == object else v.astype(object)
                      for i, v in enumerate(values)]
            values = [v if v.size else v.astype(np.int64) for v in values]  # an empty object array holds strings
        try:
            found = (self.evaluate(NUMPY, *values) if symbolic
                     else evaluate(self, NUMPY, values, [s.type for s in outputs]))
        except (TypeError, ValueError, OpError):  # not decidable on symbols
            return outputs
        return [replace(s, value=np.asarray(v)) for s, v in zip(outputs, found)]

    def attributes(self) -> dict[str, Any]:
        """The attributes by name, in order of declaration."""
        return {ir_name: getattr(self, f.name) for ir_name, f in declared(type(self)).items()}


SMALL_ELEMENTS = 1024  # elements: tensors of shape arithmetic, whose values are followed during inference


def _small(spec: Spec) -> bool:
    return all(isinstance(d, int) for d in spec.shape or ()) and product(spec.shape or ()) <= SMALL_ELEMENTS


def _integral(kind: Type) -> bool:
    return kind.is_integral()


_declared: dict[type[Op], dict[str, Field[Any]]] = {}


def declared(cls: type[Op]) -> dict[str, Field[Any]]:
    """The attributes of an op class as fields, by what they are called in the IR."""
    if cls not in _declared:
        found: tuple[Field[Any], ...] = fields(cls) if is_dataclass(cls) else ()
        _declared[cls] = {cls.ir_names.get(f.name, f.name): f for f in found}
    return _declared[cls]


OpClass = TypeVar("OpClass", bound=type[Op])

_registry: dict[str, dict[str, type[Op]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def internal_op(cls: OpClass) -> OpClass:
    """Declares an op that no file has, only passes make: its annotations, and those of its bases, are attributes.

    A dataclass whose methods are those of `Op`: to generate some for every op would take as long as all of the import.
    """
    for base in reversed(cls.__mro__):
        if issubclass(base, Op) and base is not Op and "__dataclass_fields__" not in vars(base):
            written, base.__doc__ = base.__doc__, "-"  # instead of none, for which `dataclass` writes one, slowly
            dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=True)(base)
            base.__doc__ = written
    return cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
def op(name: str, version: str, *, aliases: Sequence[str] = ()) -> Callable[[OpClass], OpClass]:
    """Registers an op version: ``@op("Relu", "opset1", aliases=["ReLU"])``. Public; a later one replaces."""

    def register(cls: OpClass) -> OpClass:
        cls = internal_op(cls)
        cls.name, cls.version, cls.aliases = name, version, tuple(aliases)
        for ir_name in (name, *aliases):
            _registry.setdefault(ir_name, {})[version] = cls
        return cls

    return register


def registry() -> Iterator[type[Op]]:
    """Every registered op version once, by name and version; aliases are on the class."""
    for name in sorted(_registry):
        for version in sorted(_registry[name], key=lambda v: (_number(v), v)):
            if _registry[name][version].name == name:
                yield _registry[name][version]


def is_own(cls: type[Op]) -> bool:
    """Whether an op is one of ovgpu's, not a user's."""
    return cls.__module__.startswith("ovgpu.ops.")


def lookup(name: str, version: str) -> type[Op] | None:
    """The newest registered version of an op that is not newer than ``version``."""
    versions = _registry.get(name, {})
    if version in versions or not version.startswith("opset"):
        return versions.get(version)
    older = [v for v in versions if v.startswith("opset") and _number(v) <= _number(version)]
    return versions[max(older, key=_number)] if older else None


def _number(version: str) -> int:
    digits = version.removeprefix("opset")
    return int(digits) if digits.isdecimal() else 0


def call(function: Callable[..., Any], *operands: Any, **named: Any) -> None:
    """A recorder that does not record: it calls at once."""
    function(*operands, **named)


def op_of(node: Any) -> Op:
    """The op of a graph's node; the graph itself knows only what it needs of one."""
    op: Op = node.op
    return op


# ---- attributes from text

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def convert(text: str, kind: Any) -> Any:
    """An attribute's value from its XML text, by annotation. ValueError if the text does not fit."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return convert(text, next(a for a in args if a is not type(None)))
    if origin is Literal:
        value = text.strip()
        found = next((a for a in args if a == value or a == value.lower()), None)
        if found is None:
            raise ValueError(f"{text!r} is not one of {', '.join(map(str, args))}")
        return found
    if origin is tuple:
        return tuple(convert(part, args[0]) for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError(f"{text!r} is not a boolean")
        return BOOLEANS[text.lower()]
    if kind is Type:
        return Type.parse(text)
    if kind in (int, float) and ("_" in text or not text.isascii()):  # numbers in Python, not in IR
        raise ValueError(f"{text!r} is not a number")
    if kind is PartialShape:
        return PartialShape(text)
    if kind not in (int, float):
        return kind(text)
    try:
        return kind(text) if kind is float or "." not in text else whole(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None


def whole(number: float) -> int:
    """Return a number without a fraction as an integer; ValueError for any other."""
    if number != int(number):
        raise ValueError
    return int(number)


_schemas: dict[type[Op], dict[str, tuple[Any, bool]]] = {}


def schema(cls: type[Op]) -> dict[str, tuple[Any, bool]]:
    """Attribute name -> (annotation, required)."""
    if cls not in _schemas:
        _schemas[cls] = {f.name: (_annotation(cls, f.name), f.default is MISSING and f.default_factory is MISSING)
                         for f in declared(cls).values()}
    return _schemas[cls]


def _annotation(cls: type[Op], name: str) -> Any:
    """Of an attribute; `typing.get_type_hints` would evaluate those of everything else in `Op` for every class."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    found = inspect.get_annotations(owner)[name]
    module = sys.modules.get(owner.__module__)
    return eval(found, {} if module is None else vars(module), vars(owner)) if isinstance(found, str) else found


def build(cls: type[Op], texts: dict[str, str], **given: Any) -> Op:
    """An op from the texts of its XML attributes; unknown ones are ignored, as OpenVINO does.

    ``given`` are attributes that are no text (bodies, port maps). Raises `OpError` naming the attribute.
    """
    values = dict(given)
    for name, (kind, required) in schema(cls).items():
        ir_name = cls.ir_names.get(name, name)
        if kind is bool and not required and texts.get(ir_name, "1").lower() not in BOOLEANS:
            continue  # OpenVINO takes the default for a text that is no boolean
        if ir_name in texts:
            try:
                values[name] = convert(texts[ir_name], kind)
            except (ValueError, OverflowError, RuntimeError) as e:
                raise OpError(f"attribute '{ir_name}': {e}") from None
        elif required and name not in values:
            raise OpError(f"attribute '{ir_name}' is missing")
    return cls(**values)


def evaluate(op: Op, xp: Any, inputs: Sequence[Array | None], outputs: Sequence[Type]) -> tuple[Array, ...]:
    """`op.evaluate` with storage types decoded before and encoded after, as `Op.exact` says."""
    if not op.exact:
        inputs = [None if x is None else decode(x, xp) for x in inputs]
    with np.errstate(all="ignore"):
        results = op.evaluate(xp, *inputs)
        return tuple(r if kind.is_dynamic() else encode(r, kind, xp) for r, kind in zip(results, outputs, strict=True))
