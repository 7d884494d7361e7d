"""Cases of single operations: a table row gives the inputs, OpenVINO gives the expected outputs.

    from tests.harness import Case, In, check, const

    CASES = [
        Case("Relu", "opset1", [In((2, 3, 5))]),
        Case("Gather", "opset8", [In((7, 3), "i32"), const([0, -1]), const(0)], id="negative"),
        Case("Softmax", "opset8", [In((2, 3))], {"axis": 4}, error="out of range"),
    ]
    test_cases = check(CASES)

Every case runs with dynamic shapes on NumPy and with static shapes on the emulated device, some also the other way
round, and with `pytest --long` all (see `runs`). The default id is made of types, shapes and attributes. The id seeds
random data, and is unique in its file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pytest

from . import joint, judge, values
from .draws import order
from .elements import as_logical, is_float, name_of
from .ir import Net, Variant
from .judge import Value
from .private import read_private
from .recall import digest, recall, remember
from .replay import DEVICES, EMULATED, Watch
from .tolerance import Tol, compare_all

Array = np.ndarray[Any, Any]
DRAWS = 3  # draws of the inputs of a case
CAPTURED = 2  # index of the first inference on a device that only replays: one runs, the next captures


@dataclass(frozen=True, eq=False)
class In:
    """An input of a case: a Parameter, or a Const when `const`.

    `data` is an array (converted to `dtype`), a callable of a random generator, or None for random values
    between `low` and `high` (see `values.random`).
    """

    shape: Sequence[int]
    dtype: str = "f32"
    data: Any = None
    const: bool = False
    low: float | None = None
    high: float | None = None

    def array(self, rng: np.random.Generator) -> Array:
        if self.data is None:
            return values.random(rng, tuple(self.shape), self.dtype, self.low, self.high)
        data = self.data(rng) if callable(self.data) else self.data
        return as_logical(data, self.dtype).reshape(tuple(self.shape))

    @property
    def fixed(self) -> bool:
        return self.const or not (self.data is None or callable(self.data))

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        text = f"{self.dtype}.{shape}"
        if self.data is not None and not callable(self.data) and 0 < np.size(self.data) <= 8:
            text += "=" + "_".join(str(v) for v in np.ravel(self.data))
        return ("c." if self.const else "") + text


def const(data: Any, dtype: str = "i64") -> In:
    """Return a constant input with these values."""
    return In(np.shape(data), dtype, np.asarray(data), const=True)


def given(data: Any, dtype: str | None = None) -> In:
    """Return a parameter with these values; `dtype` defaults to that of the array."""
    return In(np.shape(data), dtype or name_of(np.asarray(data).dtype), np.asarray(data))


class Runnable(Protocol):
    """Interface of `Case` and `Scenario`, which `check` runs."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def variants(self) -> tuple[Variant, ...]: ...
    @property
    def devices(self) -> tuple[str, ...]: ...
    def run(self, variant: Variant, device: str) -> None: ...


@dataclass(frozen=True, eq=False)
class Case:
    """One operation with its inputs.

    outputs   the number of outputs, or their element types
    tol       None for the table's tolerance; a number (rtol = atol), `Tolerance(...)`, or `Sum(terms)` for
              reductions and GEMM, with its cause as a comment on its line
    oracle    "cpu": OpenVINO's plugin; "evaluate": its reference; "auto": the first that answers; "value": `expect`
    expect    for "value" (implied): the output arrays, or a callable of the input arrays that returns them
    error     a regular expression: reading, compiling or running must raise an error that begins with "[op]"
    dynamic   also run with all dims of all parameters dynamic
    rankless  also run with a dynamic rank
    """

    op: str
    version: str
    inputs: Sequence[In]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int | Sequence[str] = 1
    tol: Tol = None
    oracle: judge.Oracle = "auto"
    expect: Any = None
    id: str | None = None
    dynamic: bool = True
    rankless: bool = False
    error: str | None = None

    @cached_property
    def name(self) -> str:
        described = [*map(str, self.inputs), *(f"{key}={value}" for key, value in self.attrs.items())]
        parts = [self.id] if self.id else described
        return re.sub(r"[^\w.=+~-]+", "_", "-".join([self.op, self.version, *parts]))

    @property
    def variants(self) -> tuple[Variant, ...]:
        shapes = [tuple(i.shape) for i in self.inputs if not i.const]
        return variants_of(self.dynamic and any(shapes), self.rankless and bool(shapes))

    @property
    def judged(self) -> bool:
        return self.error is None

    @property
    def valued(self) -> bool:
        """True if the case has its expected values, and needs no judge."""
        return self.expect is not None or self.oracle == "value"

    @property
    def devices(self) -> tuple[str, ...]:
        return DEVICES if self.judged else DEVICES[:1]

    @property
    def group(self) -> str:
        return f"{self.op} {self.version}"

    def arrays(self, draw: int = 0) -> list[Array]:
        """Return the inputs. `draw` 1, 2, ... redraws random parameters, and rolls the elements of given floats."""
        seed = zlib.crc32(self.name.encode())
        arrays = [i.array(np.random.default_rng([seed, n, 0 if i.fixed else draw])) for n, i in enumerate(self.inputs)]
        moved = draw and (self.expect is None or callable(self.expect))
        return [
            np.roll(a, draw) if moved and i.fixed and not i.const and is_float(i.dtype) else a
            for i, a in zip(self.inputs, arrays)
        ]

    @cached_property
    def net(self) -> Net:
        net = Net(self.name)
        ports = [
            net.const(a, i.dtype) if i.const else net.parameter(i.dtype, i.shape)
            for i, a in zip(self.inputs, self.arrays())
        ]
        outputs = net.layer(self.op, self.version, ports, self.attrs, self.outputs, name="op")
        for port in outputs if isinstance(outputs, tuple) else (outputs,):
            net.result(port)
        return net

    @cached_property
    def _drawn(self) -> list[list[Array]]:
        """The inputs of every draw."""
        return [self.arrays(draw) for draw in range(DRAWS)]

    @property
    def key(self) -> str:
        """The key by which OpenVINO's answer is recalled."""
        return digest([*self.net.build(), self.oracle, *chain.from_iterable(self._drawn)])

    def question(self, draws: int = DRAWS) -> joint.Question | None:
        """Return the question for OpenVINO's CPU plugin, None if the plugin is not the first to ask."""
        if not self.judged or self.expect is not None or self.oracle not in ("auto", "cpu") or self.op in joint.ALONE:
            return None
        if self.oracle == "auto" and any(i.dtype == "f64" and not i.const for i in self.inputs):
            return None
        return joint.Question(*self.net.build(), [self.parameters(arrays) for arrays in self._drawn[:draws]])

    @cached_property
    def expected(self) -> list[list[judge.Expected]]:
        """The outputs for every draw of the inputs."""
        if not self.valued:
            stateless = judge.Judge(*self.net.build(), self.oracle)
            return recall(self.key, lambda: [stateless.expect(self.parameters(arrays)) for arrays in self._drawn])
        with np.errstate(all="ignore"):
            wanted = [self.expect(*arrays) if callable(self.expect) else self.expect for arrays in self._drawn]
        return [[judge.Expected.of(a) for a in (w if isinstance(w, tuple | list) else [w])] for w in wanted]

    def run(self, variant: Variant, device: str) -> None:
        """Compare outputs for changing inputs, or check the error."""
        where = f"[{self.op}] {self.name} ({variant}, {device})"
        if self.error is not None:
            with pytest.raises(Exception) as caught:
                judge.infer(api(), compile(self.net, variant, device), self.parameters(self.arrays()))
            check_error(where, caught.value, self.op, self.error)
            return
        watch = self.watched(variant, device)
        if device == EMULATED:
            watch.close(self.group, self.name, variant)

    def watched(self, variant: Variant, device: str) -> Watch:
        """Compare outputs for changing inputs; return the watch, which saw work besides graph launches on a device."""
        where = f"[{self.op}] {self.name} ({variant}, {device})"
        wanted, request, watch = self.expected, compile(self.net, variant, device, self.valued), Watch()
        for run, draw in enumerate((*range(DRAWS), 0)):
            infer = partial(judge.infer, api(), request, self.parameters(self.arrays(draw)))
            found = watch.infer(request, infer) if device == EMULATED and run >= CAPTURED else infer()
            compare_all(f"{where} run {run}", found, wanted[draw], self.tol)
        return watch

    def parameters(self, arrays: list[Array]) -> list[Value]:
        """Return the inputs that are parameters of the net."""
        return [(a, i.dtype) for i, a in zip(self.inputs, arrays) if not i.const]


def variants_of(dynamic: bool, rankless: bool) -> tuple[Variant, ...]:
    """Return the variants in which a model is declared: always static, the others on request."""
    return ("static", *(["dynamic"] if dynamic else []), *(["rankless"] if rankless else []))


def across(versions: Iterable[str], cases: Iterable[Case]) -> list[Case]:
    """Return the same cases for several versions of an op."""
    cases = list(cases)
    return [replace(case, version=version) for version in versions for case in cases]


def check(cases: Sequence[Runnable]) -> Callable[..., None]:
    """Return a pytest function that runs the cases: `test_cases = check(CASES)`.

    tests/conftest.py parametrizes it with the `runs` of the cases."""
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise ValueError(f"two cases are called {case.name}: give one an id")
        seen.add(case.name)
    ask = together(cases)

    def test(case: Runnable, variant: Variant, device: str) -> None:
        ask(case)
        case.run(variant, device)

    test.cases = tuple(cases)  # type: ignore[attr-defined]  # read by conftest, `conformance` and `store`
    return test


Run = tuple[Runnable, Variant, str]  # a case, the variant in which its model is declared, and a device


def runs(cases: Sequence[Runnable], *, every: bool = False) -> list[Run]:
    """Return the runs of cases to test: every one, or the usual two of each case and a few drawn ones.

    The usual two are dynamic shapes on NumPy and static shapes on the emulated device: together they execute nearly
    all lines that all runs execute. Of the others, one of each kind is drawn per operation, by a hash of the names."""
    found = [(case, variant, device) for case in cases for variant in case.variants for device in case.devices]
    if every:
        return found
    kinds: dict[tuple[str, Variant, str], list[Run]] = {}
    for run in found:
        case, variant, device = run
        kinds.setdefault((case.group, variant, device), []).append(run)
    drawn = {min(kind, key=lambda run: order("-".join([run[0].name, *run[1:]]))) for kind in kinds.values()}
    return [run for run in found if run in drawn or _is_usual(*run)]


def _is_usual(case: Runnable, variant: Variant, device: str) -> bool:
    return variant == ("static" if device == EMULATED or "dynamic" not in case.variants else "dynamic")


def together(cases: Sequence[Runnable]) -> Callable[[Runnable], None]:
    """Return a function that asks OpenVINO's CPU plugin about a case, and about those beside it in the table, which
    takes little more time. A case that the plugin refuses is judged alone when it runs."""
    judged = [case for case in cases if isinstance(case, Case)]
    places = {id(case): place // joint.TOGETHER for place, case in enumerate(judged)}

    @cache
    def ask(place: int | None) -> None:
        asked = {case.key: question for case in judged if places[id(case)] == place and (question := case.question())}
        remember(asked, lambda unknown: joint.answers([asked[key] for key in unknown]))

    return lambda case: ask(places.get(id(case)))


def api() -> Any:
    """Return the library under test."""
    import ovgpu

    return ovgpu


def compile(net: Net, variant: Variant, device: str, private: bool = False) -> Any:
    """Return an InferRequest of the library under test, which computes in the types that the net declares.

    A ``private`` model is for ovgpu alone (see `harness.private`).
    """
    core, config = api().Core(), {"INFERENCE_PRECISION_HINT": "dynamic"}
    model = read_private(net, variant) if private else core.read_model(*net.build(variant))
    return core.compile_model(model, device, config).create_infer_request()


def check_error(where: str, error: BaseException, op: str, pattern: str) -> None:
    """Check that an error message begins with the op and matches the pattern."""
    text = str(error)
    assert text.startswith(f"[{op}]"), f"{where}: the error does not begin with [{op}]: {text!r}"
    assert re.search(pattern, text), f"{where}: the error does not match {pattern!r}: {text!r}"
