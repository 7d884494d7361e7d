"""The base class `Op` and the registry: one class per op version, with everything about the operation in one place.

    @op("Softmax", "opset8", "activation/softmax-8")
    class Softmax(Op):
        axis: int = 1                                  # the attributes: annotation and default are the schema

        def infer_specs(self, x: Spec) -> tuple[Spec, ...]:  # element types and shapes, symbolic where not yet known
            ...

        def evaluate(self, xp, x):                     # the definition: NumPy or CuPy arrays in, fresh ones out
            ...

An op needs no more than this. `numpy` and `cuda` are optional fast forms, whose results tests compare with those of
`evaluate`. The other members of `Op` tell the planner how it may use the op.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, product
from ovgpu.types import PartialShape, Type

if typing.TYPE_CHECKING:
    from ovgpu.ops.base.view import View

SPECIFICATIONS = "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/{}.html"
Array = Any  # numpy.ndarray or cupy.ndarray
Arrays = Sequence[Array]
Workspace = tuple[tuple[Type, tuple[Int, ...]], ...]


class Op:
    """Base of all operations: an immutable object that holds the attributes of one node's operation.

    To add an operation, subclass `Op` under the decorator `op`, annotate the attributes, and implement `infer_specs`
    and `evaluate`. Override the other members only where the defaults do not fit.
    """

    name: ClassVar[str]
    version: ClassVar[str] = "ovgpu"
    """Ops that only passes create have this version. The decorator `op` sets version and aliases of all others."""
    aliases: ClassVar[tuple[str, ...]] = ()
    page: ClassVar[str] = ""

    host_inputs: ClassVar[tuple[int, ...]] = ()
    """Indices of the inputs whose values are needed on the host: by `infer_specs` (target shapes, axes) or as plain
    numbers. `evaluate` and the fast forms get them as NumPy arrays. A final ``-1`` stands for all inputs after those
    listed."""

    layout: ClassVar[Literal["strided", "blas", "dense", "image", "channels_last"]] = "strided"
    """The input layout that the fast forms need: any strides, unit stride in one of the last two axes, or contiguous.
    The planner copies other inputs into a dense buffer first. ``channels_last``: inputs of rank 4, and the output, have
    adjacent channels (`View.has_pixels`); the planner copies other inputs into that layout. ``image``: the output, and
    inputs of its shape, are all contiguous, or all have adjacent channels."""

    keeps_layout: ClassVar[bool] = False
    """True if an output of rank 4 should be `View.channels_last` where an input has adjacent channels."""

    strided_outputs: ClassVar[bool] = False
    """True if the fast forms can write into outputs that are not contiguous (parts of a Concat)."""

    exact: ClassVar[bool] = False
    """True if `evaluate` only moves or compares bits, and takes storage types (f16, bf16, f8, i4 ...) as they are.
    Other ops get inputs that `storage.decode` has converted (to f32 or i8), and their results are rounded once."""

    takes_strings: ClassVar[bool] = False
    """True if the op takes strings as well, although it is not `exact`."""

    supports_symbolic: ClassVar[bool] = False
    """True if `evaluate` also works on object arrays of symbolic integers (movement and integer arithmetic)."""

    effect: ClassVar[bool] = False
    """True if the op has effects beyond its outputs (state, random numbers): it is never removed, merged or folded."""

    is_reshape: ClassVar[bool] = False
    """True if the output has the elements of input 0, in their order, in another shape."""

    moves_elements: ClassVar[bool] = False
    """True if all elements of the output are elements of input 0; ops with `is_reshape` need not say so."""

    partial_inputs: ClassVar[tuple[int, ...]] = ()
    """Indices of the inputs from which the op reads no more bytes than it writes."""

    half_precision: ClassVar[Literal["never", "always", "bounded", "promoted"]] = "never"
    """When a model in f16 or bf16 runs the op in 16 bits: never, always, or unless an input is f32 (promoted). Bounded
    is as promoted, except that an f32 result, too, may be rounded to 16 bits. See `ovgpu.passes.downcast`."""

    host_in_decode: ClassVar[bool] = False
    """True if the host may compute the op in decode steps, where its lengths or values depend on those of KV caches."""

    updates: ClassVar[dict[int, tuple[int, int]]] = {}
    """Outputs that are inputs changed in place: output index -> (index of that input, index of the input that is
    written into it). The fast forms get one array as both; `evaluate` returns a fresh array, as for any op."""

    reads_updated: ClassVar[bool] = False
    """True if the op also reads the inputs that it changes."""

    mixed_reals: ClassVar[tuple[int, ...]] = ()
    """Indices of the inputs whose floating-point type may differ from that of input 0, as in OpenVINO. `infer_specs`
    gets them with the type of input 0, and the pass `convert_mixed_reals` converts all of them to one type before
    anything is computed."""

    ir_names: ClassVar[dict[str, str]] = {}
    """Python name -> IR name, for attributes whose IR name is not a Python identifier."""

    def __init__(self, **values: Any) -> None:
        for f in declared(type(self)).values():
            default = f.default if f.default_factory is MISSING else f.default_factory()
            self.__dict__[f.name] = value = values.pop(f.name, default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs the attribute '{f.name}'")
        if values:
            raise TypeError(f"{type(self).__name__} has no attribute '{next(iter(values))}'")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "infer" in vars(cls) and "infer_specs" not in vars(cls):
            warnings.warn(
                f"{cls.__name__}.infer is called infer_specs now: rename it", DeprecationWarning, stacklevel=2
            )
            cls.infer_specs = cls.infer  # type: ignore[attr-defined, method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to '{name}': an op is immutable")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in tuple(vars(self).items()))})"

    def check_types(self, inputs: Sequence[Spec | None]) -> None:
        """Raise `OpError` for string inputs, unless the op is `exact`, `takes_strings` or is defined outside ovgpu."""
        if self.exact or self.takes_strings or not is_own(type(self)):
            return
        if any(s is not None and s.type is Type.string for s in inputs):
            raise OpError("element type string is not a number")

    def takes_parts(self, dtype: Type) -> bool:
        """Return whether tensors of type ``dtype`` with adjacent channels may be parts of tensors with more
        channels."""
        return True

    def infer_mixed(self, inputs: Sequence[Spec | None]) -> tuple[Spec, ...]:
        """Call `infer_specs` for inputs whose floating-point types may differ as `mixed_reals` allows."""
        given = list(inputs)
        for i in self.mixed_reals:
            spec = given[i] if i < len(given) else None
            if spec is not None and given[0] is not None and {spec.type, given[0].type} <= MIXED_REALS:
                given[i] = replace(spec, type=given[0].type)
        return self.infer_specs(*given)

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        """Return the specs of the outputs: element type, shape, and value if inference knows it.

        An absent optional input is None. Raises `OpError` for inputs that the specification does not allow.
        """
        raise NotImplementedError

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        """Compute the outputs: the definition of the op.

        `xp` is the adapter of NumPy or CuPy (see `xp.Adapter`), and inputs are its arrays; those of `host_inputs` are
        NumPy arrays, absent ones None. Unless the op is `exact`, inputs are decoded, and results may have a wider type
        than the output (f32 for f16). Returns one array per output. Raises `OpError` for values that are not allowed.
        """
        raise NotImplementedError

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        """Return each output as a `View` of the memory of the first input that is on the device, so that no step runs.

        ``inputs`` are the inputs' own views, None for host inputs. Returns None if an output needs memory of its own.
        """
        return None

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        """Return the indices of inputs whose memory output 0 may take over if no later step reads them."""
        return ()

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return (type, shape) of each scratch buffer that the fast forms need."""
        return ()

    def rng_state(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the initial state of an op that carries state from one inference to the next. The compiled model owns
        these arrays. The op gets them after its inputs, and changes them in place."""
        return ()

    # The optional fast forms: methods `numpy(self, k, inputs, outputs, workspace)` and `cuda`, with equal parameters.
    # They run once per binding and record with `k` the calls that write `outputs`. Each inference replays the calls.
    # - `k`: a `HostRecorder` in `numpy`, a `KernelRecorder` in `cuda`; see `ovgpu.ops.base.recorder`.
    # - `inputs`, `outputs`: arrays of storage types in planned memory, with the strides that `layout` and
    #   `strided_outputs` allow. Absent inputs are None. `workspace`: the scratch buffers that `workspace()` asks for.
    # - A form returns NotImplemented for arrays that it does not support; `evaluate` then runs instead.
    numpy: ClassVar[Callable[..., Any] | None] = None
    cuda: ClassVar[Callable[..., Any] | None] = None

    def propagate(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the output specs, with values where they follow from known or symbolic input values."""
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
            values = [
                v if i in self.host_inputs or v.dtype == object else v.astype(object) for i, v in enumerate(values)
            ]
            values = [v if v.size else v.astype(np.int64) for v in values]  # an empty object array holds strings
        try:
            results = (
                self.evaluate(NUMPY, *values) if symbolic else evaluate(self, NUMPY, values, [s.type for s in outputs])
            )
        except (TypeError, ValueError, OpError):  # not decidable on symbols
            return outputs
        return [replace(s, value=np.asarray(v)) for s, v in zip(outputs, results)]

    def attributes(self) -> dict[str, Any]:
        """Return the attributes by IR name, in order of declaration."""
        return {ir_name: getattr(self, f.name) for ir_name, f in declared(type(self)).items()}


OPSETS = [f"opset{n}" for n in range(1, 18)]  # of OpenVINO, as far as ovgpu knows them
MIXED_REALS = frozenset((Type.f16, Type.bf16, Type.f32, Type.f64))
SMALL_ELEMENTS = 1024  # the most elements of a tensor, such as a shape, whose values inference propagates


def _small(spec: Spec) -> bool:
    return all(isinstance(d, int) for d in spec.shape or ()) and product(spec.shape or ()) <= SMALL_ELEMENTS


def _integral(dtype: Type) -> bool:
    return dtype.is_integral()


_declared: dict[type[Op], dict[str, Field[Any]]] = {}


def declared(cls: type[Op]) -> dict[str, Field[Any]]:
    """Return the attributes of an op class as dataclass fields, by IR name."""
    if cls not in _declared:
        attributes: tuple[Field[Any], ...] = fields(cls) if is_dataclass(cls) else ()
        _declared[cls] = {cls.ir_names.get(f.name, f.name): f for f in attributes}
    return _declared[cls]


OpClass = TypeVar("OpClass", bound=type[Op])

_registry: dict[str, dict[str, type[Op]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def internal_op(cls: OpClass) -> OpClass:
    """Declare an op that only passes create, and no IR file contains. Annotations of it and its bases are attributes.

    The class becomes a dataclass with the methods of `Op`: generating them per class takes as long as the whole import.
    """
    for base in reversed(cls.__mro__):
        if issubclass(base, Op) and base is not Op and "__dataclass_fields__" not in vars(base):
            docstring, base.__doc__ = base.__doc__, "-"  # without a docstring, `dataclass` would generate one, slowly
            dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=True)(base)
            base.__doc__ = docstring
    return cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
def op(name: str, version: str, page: str = "", *, aliases: Sequence[str] = ()) -> Callable[[OpClass], OpClass]:
    """Register an op version: ``@op("Relu", "opset1", "activation/relu-1", aliases=["ReLU"])``.

    Public as ``ovgpu.register_op``. A later registration of the same name and version replaces the earlier one.
    ``page`` is the path of the specification in OpenVINO's documentation; see `specification`.
    """

    def register(cls: OpClass) -> OpClass:
        cls = internal_op(cls)
        cls.name, cls.version, cls.page, cls.aliases = name, version, page, tuple(aliases)
        for ir_name in (name, *aliases):
            _registry.setdefault(ir_name, {})[version] = cls
        return cls

    return register


def registry() -> Iterator[type[Op]]:
    """Yield every registered op version once, sorted by name and version; its aliases are on the class."""
    for name in sorted(_registry):
        for version in sorted(_registry[name], key=lambda v: (_number(v), v)):
            if _registry[name][version].name == name:
                yield _registry[name][version]


def specification(cls: type[Op]) -> str:
    """Return the address of the page that specifies an op version, "" for a user's op without one."""
    return SPECIFICATIONS.format(cls.page) if cls.page else ""


def is_own(cls: type[Op]) -> bool:
    """Return whether an op class is ovgpu's own, not a user's."""
    return cls.__module__.startswith("ovgpu.ops.")


def lookup(name: str, version: str) -> type[Op] | None:
    """Return the newest registered version of an op that is not newer than ``version``, None if there is none.

    An opset that ovgpu does not know may have other versions of any op. For it, only ops that users registered are
    found.
    """
    versions = _registry.get(name, {})
    if version in versions or version not in OPSETS:
        return versions.get(version)
    older = [v for v in versions if v.startswith("opset") and _number(v) <= _number(version)]
    return versions[max(older, key=_number)] if older else None


def _number(version: str) -> int:
    digits = version.removeprefix("opset")
    return int(digits) if digits.isdecimal() else 0


def call(function: Callable[..., Any], *operands: Any, **named: Any) -> None:
    """Call the function at once; stands in for the recorder `k` where nothing is to be recorded."""
    function(*operands, **named)


def op_of(node: Any) -> Op:
    """Return a node's op, typed as `Op`; the graph itself declares a narrower protocol."""
    op: Op = node.op
    return op


# ---- attributes from text

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def convert(text: str, annotation: Any) -> Any:
    """Return the value of an attribute with this ``annotation`` from its XML text. Raises ValueError if it does not
    fit."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return convert(text, next(a for a in args if a is not type(None)))
    if origin is Literal:
        value = text.strip()
        match = next((a for a in args if a == value or a == value.lower()), None)
        if match is None:
            raise ValueError(f"{text!r} is not one of {', '.join(map(str, args))}")
        return match
    if origin is tuple:
        return tuple(convert(part, args[0]) for part in text.split(",") if part.strip())
    if annotation is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError(f"{text!r} is not a boolean")
        return BOOLEANS[text.lower()]
    if annotation is Type:
        return Type.parse(text)
    if annotation in (int, float) and ("_" in text or not text.isascii()):  # numbers to Python, but not in the IR
        raise ValueError(f"{text!r} is not a number")
    if annotation is PartialShape:
        return PartialShape(text)
    if annotation not in (int, float):
        return annotation(text)
    try:
        return annotation(text) if annotation is float or "." not in text else whole(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {'an integer' if annotation is int else 'a number'}") from None


def whole(value: float) -> int:
    """Return a number without a fraction as an integer. Raises ValueError for any other number."""
    if value != int(value):
        raise ValueError
    return int(value)


_schemas: dict[type[Op], dict[str, tuple[Any, bool]]] = {}


def schema(cls: type[Op]) -> dict[str, tuple[Any, bool]]:
    """Return the attributes of an op class: name -> (annotation, required)."""
    if cls not in _schemas:
        _schemas[cls] = {
            f.name: (_annotation(cls, f.name), f.default is MISSING and f.default_factory is MISSING)
            for f in declared(cls).values()
        }
    return _schemas[cls]


def _annotation(cls: type[Op], name: str) -> Any:
    """Return an attribute's annotation; `typing.get_type_hints` would evaluate all annotations of `Op` per class."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    annotation = inspect.get_annotations(owner)[name]
    module = sys.modules.get(owner.__module__)
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {} if module is None else vars(module), vars(owner))


def build(cls: type[Op], texts: dict[str, str], **others: Any) -> Op:
    """Return an op made from the texts of its XML attributes; unknown attributes are ignored, as in OpenVINO.

    ``others`` are attributes that are not text (bodies, port maps). Raises `OpError` that names the wrong attribute.
    """
    values = dict(others)
    for name, (annotation, required) in schema(cls).items():
        ir_name = cls.ir_names.get(name, name)
        if annotation is bool and not required and texts.get(ir_name, "1").lower() not in BOOLEANS:
            continue  # OpenVINO takes the default for a text that is not a boolean
        if ir_name in texts:
            try:
                values[name] = convert(texts[ir_name], annotation)
            except (ValueError, OverflowError, RuntimeError) as e:
                raise OpError(f"attribute '{ir_name}': {e}") from None
        elif required and name not in values:
            raise OpError(f"attribute '{ir_name}' is missing")
    return cls(**values)


def evaluate(op: Op, xp: Adapter, inputs: Sequence[Array | None], outputs: Sequence[Type]) -> tuple[Array, ...]:
    """Run `op.evaluate` on inputs decoded from storage types, and encode its results to them; see `Op.exact`.

    ``outputs`` are the outputs' element types; a result of dynamic type stays as it is.
    """
    if not op.exact:
        inputs = [None if x is None else decode(x, xp) for x in inputs]
    with np.errstate(all="ignore"):
        results = op.evaluate(xp, *inputs)
        return tuple(
            r if dtype.is_dynamic() else encode(r, dtype, xp) for r, dtype in zip(results, outputs, strict=True)
        )
