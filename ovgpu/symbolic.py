"""Symbolic integers: extents, strides, offsets and lengths that are known only when the input shapes are.

An `Int` is a Python int or a `Sym`. A `Sym` is a polynomial with integer coefficients over atoms. An atom is a source
(an input's extent, an element of a host tensor) or an operation that is not a polynomial (a floor division, a minimum,
a broadcast). Polynomials are interned, so two equal expressions are the same object. `ExpressionCodegen` writes the
Python code that computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ovgpu.cache_capacity import cache_capacity
from ovgpu.errors import OpError

Int = Any  # int | Sym; `Any` so that inference code reads as plain arithmetic
Bound = int | None  # an upper bound; None is infinite
INFINITE = None

RECENT_CHECKS = 8
"""Checks that a new check is compared with. A duplicate only costs time, and comparing with all would be quadratic."""


class Atom:
    """Indivisible symbolic integer: ``op`` applied to ``args``, between ``lo`` and ``hi`` inclusive."""

    __slots__ = ("args", "hi", "index", "lo", "op")

    def __init__(self, index: int, op: str, args: tuple[Any, ...], lo: int, hi: Bound) -> None:
        self.index, self.op, self.args, self.lo, self.hi = index, op, args, lo, hi


Monomial = tuple[Atom, ...]


class Sym:
    """Symbolic integer. It is immutable and interned per table, so ``==`` is identity."""

    __slots__ = ("_range", "atoms", "index", "table", "terms")

    def __init__(self, table: Table, index: int, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.table, self.index, self.terms = table, index, terms
        self._range: tuple[int, Bound] | None = None
        self.atoms: tuple[Atom, ...] | None = None  # filled by the function `atoms`

    @property
    def range(self) -> tuple[int, Bound]:
        """The smallest and the largest value that the integer may have; computed at the first access."""
        if self._range is None:
            self._range = _bounds(self.terms)
        return self._range

    @property
    def lo(self) -> int:
        return self.range[0]

    @property
    def hi(self) -> Bound:
        return self.range[1]

    def __add__(self, other: Int) -> Int:
        return self.table.polynomial([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Int:
        return self * -1

    def __sub__(self, other: Int) -> Int:
        return self + other * -1

    def __rsub__(self, other: Int) -> Int:
        return self * -1 + other

    def __mul__(self, other: Int) -> Int:
        if not isinstance(other, Sym):
            factor = int(other)
            return self.table.intern(tuple([(m, a * factor) for m, a in self.terms])) if factor else 0
        return self.table.polynomial([(_product(m, n), a * b) for m, a in self.terms for n, b in other.terms])

    __rmul__ = __mul__

    def __floordiv__(self, other: Int) -> Int:
        return self.table.floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Int:
        return self.table.floordiv(other, self)

    def __mod__(self, other: Int) -> Int:
        return self - (self // other) * other

    def __rmod__(self, other: int) -> Int:
        return other - (other // self) * self

    def __bool__(self) -> bool:
        raise TypeError("a symbolic integer has no truth value")

    def __repr__(self) -> str:
        return expression(self, _atom_text)

    def __str__(self) -> str:
        """Return the bounds in the notation of dimensions: ?, 2.. or 2..5."""
        low, high = max(self.lo, 0), self.hi
        return "?" if not low and high is None else f"{low}..{'' if high is None else high}"


def _atom_text(atom: Atom) -> str:
    return f"{atom.op}({', '.join(map(repr, atom.args))})"


def atoms(value: Int) -> tuple[Atom, ...]:
    """Return the atoms of an expression, each once, including atoms in the arguments of other atoms."""
    if not isinstance(value, Sym):
        return ()
    if value.atoms is None:
        seen: dict[Atom, None] = {}
        stack = [value]
        while stack:
            for monomial, _ in stack.pop().terms:
                for atom in monomial:
                    if atom not in seen:
                        seen[atom] = None
                        stack += [a for a in atom.args if isinstance(a, Sym)]
        value.atoms = tuple(seen)
    return value.atoms


def _terms(value: Int) -> Iterable[tuple[Monomial, int]]:
    return value.terms if isinstance(value, Sym) else [((), int(value))]


def _product(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=lambda atom: atom.index))


def _bounds(terms: Iterable[tuple[Monomial, int]]) -> tuple[int, Bound]:
    """Return the least and greatest value of a polynomial by interval arithmetic; -2**63 if it has no lower bound."""
    low: float = 0
    high: float = 0
    for monomial, factor in terms:
        lo = hi = float(factor) if abs(factor) > 2**53 else factor
        for atom in monomial:
            above = math.inf if atom.hi is None else atom.hi
            ends = [a * b if a and b else 0 for a in (lo, hi) for b in (atom.lo, above)]
            lo, hi = min(ends), max(ends)
        low, high = low + lo, high + hi
    return (int(low) if low > -math.inf else -(2**63)), (int(high) if high < math.inf else None)


class Table:
    """Interned symbols of one program, and the checks that shape inference could not decide."""

    def __init__(self) -> None:
        self._atoms: dict[tuple[Any, ...], Atom] = {}
        self._syms: dict[tuple[tuple[Monomial, int], ...], Sym] = {}
        self.checks: list[Check] = []
        self._tokens: list[Token[Table]] = []
        self.layer: Any = None  # the node or layer whose shapes are being inferred

    # ---- building

    def polynomial(self, terms: Iterable[tuple[Monomial, int]]) -> Int:
        """Return the sum of (monomial, coefficient) terms, combined and sorted; an int if it is constant."""
        total: dict[Monomial, int] = {}
        for monomial, factor in terms:
            total[monomial] = total.get(monomial, 0) + factor
        items = sorted(((m, f) for m, f in total.items() if f), key=lambda t: tuple(a.index for a in t[0]))
        if not items:
            return 0
        if len(items) == 1 and not items[0][0]:
            return items[0][1]
        return self.intern(tuple(items))

    def intern(self, terms: tuple[tuple[Monomial, int], ...]) -> Sym:
        """Return the symbol with these terms, which must be sorted and have nonzero coefficients."""
        sym = self._syms.get(terms)
        if sym is None:
            sym = self._syms[terms] = Sym(self, len(self._syms), terms)
        return sym

    def atom(self, op: str, *args: Any, lo: int = 0, hi: Bound = INFINITE) -> Int:
        """Return the symbol ``op(*args)``: the same object for equal arguments, or an int if ``lo == hi``."""
        if hi is not None and lo == hi:
            return lo
        key = (op, *args)
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = Atom(len(self._atoms), op, args, lo, hi)
        return self.polynomial([((atom,), 1)])

    def floordiv(self, a: Int, b: Int) -> Int:
        """Return ``a // b``. Raise OpError if ``b`` is the constant 0."""
        if isinstance(b, int) and b == 0:
            raise OpError("division by zero in shape arithmetic")
        divisor = list(_terms(b))
        if len(divisor) == 1:  # divide the divisible terms exactly, floor-divide the rest
            monomial, factor = divisor[0]
            exact, rest = [], []
            for m, f in _terms(a):
                quotient = _quotient(m, monomial)
                (
                    exact.append((quotient, f // factor))
                    if quotient is not None and f % factor == 0
                    else rest.append((m, f))
                )
            if exact or not rest:
                left = self.polynomial(rest)
                return self.polynomial(exact) + (self.floordiv(left, b) if rest else 0)
        if not isinstance(a, Sym) and not isinstance(b, Sym):
            return a // b
        lo, hi = bounds(a)
        if lo < 0 or bounds(b)[0] < 1:
            return self.atom("floordiv" if bounds(b)[0] > 0 else "safediv", a, b, lo=-(2**63))
        return self.atom(
            "floordiv",
            a,
            b,
            lo=0 if isinstance(b, Sym) else lo // b,
            hi=hi if hi is None or isinstance(b, Sym) else hi // b,
        )

    # ---- checks

    def require(self, op: str, a: Int, b: Int, message: str) -> None:
        """Check ``op(a, b)`` at run time; `message` may use ``{0}`` and ``{1}`` for the two values."""
        if any(c.op == op and c.a is a and c.b is b for c in self.checks[-RECENT_CHECKS:]):
            return
        # A check holds the layer's name, not the layer: specs refer from a model to its table through object arrays,
        # and Python's garbage collector does not look into NumPy arrays, so the cycle would never be freed.
        where = None if self.layer is None else (self.layer.op.name, self.layer.source_location)
        self.checks.append(Check(op, a, b, message, where))

    # ---- the active table

    def __enter__(self) -> Self:
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _active.reset(self._tokens.pop())


_active: ContextVar[Table] = ContextVar("table")


def active() -> Table:
    """Return the table of the shape inference that is now running."""
    return _active.get()


def unknown(lo: int = 0, hi: Bound = INFINITE) -> Int:
    """Return a new extent that is known only after the step being inferred has run (NonZero, a loop's length)."""
    return _active.get().atom("unknown", object(), lo=lo, hi=hi)


@dataclass(frozen=True)
class Check:
    """Condition on two integers that is checked at run time."""

    op: str  # "same" (a == b) | "broadcast" (equal, or one is 1) | "onto" (a == b or a == 1) | "le" (a <= b)
    a: Int
    b: Int
    message: str
    where: tuple[str, str] | None  # op and source location of the layer that requires it


_OPS: dict[str, str] = {
    "floordiv": "({0} // ({1}))",
    "safediv": "_safediv({0}, {1})",
    "truncdiv": "_truncdiv({0}, {1})",
    "fmod": "_fmod({0}, {1})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "broadcast": "({1} if {0} == 1 else {0})",
    "select": "({1} if {0} else {2})",
    "eq": "int({0} == {1})",
    "ne": "int({0} != {1})",
    "lt": "int({0} < {1})",
    "le": "int({0} <= {1})",
    "and": "int(bool({0} and {1}))",
    "or": "int(bool({0} or {1}))",
    "not": "int(not {0})",
    "abs": "abs({0})",
    "scaled": "_scaled({0}, {1})",
    "capacity": "_capacity({0}, {1}, {2})",
}
OPAQUE = {"dim", "item", "stride", "unknown"}  # atoms without operands: the caller supplies their values
CHECKS: dict[str, str] = {
    "same": "{0} != {1}",
    "broadcast": "{0} != {1} and {0} != 1 and {1} != 1",
    "onto": "{0} != {1} and {0} != 1",
    "le": "{0} > {1}",
}


def _safediv(a: int, b: int) -> int:
    """Return ``a // b``, or 0 if ``b`` is 0: divisions by zero that matter are checked separately."""
    return a // b if b else 0


def _truncdiv(a: int, b: int) -> int:
    if not b:
        return 0
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _fmod(a: int, b: int) -> int:
    return a - _truncdiv(a, b) * b


def _scaled(extent: int, bits: int) -> int:
    scale = np.array(bits, np.uint32).view(np.float32)
    return int(np.floor(np.float32(extent) * (scale + np.float32(1e-6))))


HELPERS: dict[str, Callable[..., int]] = {
    "_safediv": _safediv,
    "_truncdiv": _truncdiv,
    "_fmod": _fmod,
    "_scaled": _scaled,
    "_capacity": cache_capacity,
}


def _quotient(a: Monomial, b: Monomial) -> Monomial | None:
    left = list(a)
    for atom in b:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def expression(value: Int, atom: Callable[[Atom], str]) -> str:
    """Return the Python source of ``value``; ``atom`` returns that of an atom."""
    if not isinstance(value, Sym):
        return str(value)
    parts = []
    for monomial, factor in value.terms:
        names = [atom(a) for a in monomial]
        if factor != 1 or not names:
            names.insert(0, str(factor))
        parts.append("*".join(names))
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


class ExpressionCodegen:
    """Generator of the lines of a function that computes expressions. Each atom is computed once, before its first use.

    ``source`` returns the code of an atom whose value the caller supplies (`OPAQUE`).
    """

    def __init__(self, source: Callable[[Atom], str]) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._source = source

    def expression(self, value: Int) -> str:
        """Return the source of ``value``, after adding the lines that compute its atoms."""
        return expression(value, self._atom)

    def _atom(self, atom: Atom) -> str:
        name = self._names.get(atom.index)
        if name is None:
            code = (
                self._source(atom)
                if atom.op in OPAQUE
                else _OPS[atom.op].format(*(self.expression(a) for a in atom.args))
            )
            name = self._names[atom.index] = f"s{atom.index}"
            self.lines.append(f"{name} = {code}")
        return name


# ---- arithmetic on Ints that has no Python operator


def bounds(value: Int) -> tuple[int, Bound]:
    """Return the smallest and the largest value that an Int may have; the latter is None if it is unbounded."""
    return value.range if isinstance(value, Sym) else (value, value)


def _table(*values: Int) -> Table:
    return next(v.table for v in values if isinstance(v, Sym))


def _static(*values: Int) -> bool:
    return not any(isinstance(v, Sym) for v in values)


def apply(op: str, *args: Int) -> Int:
    """Return the operation ``op`` (a key of `_OPS`) on Ints: an int if all arguments are ints, else a symbol."""
    if _static(*args):
        return int(eval(_OPS[op].format(*args), {**HELPERS}))
    if op in ("eq", "le") and args[0] is args[1]:
        return 1
    if op in ("ne", "lt") and args[0] is args[1]:
        return 0
    hi = 1 if op in ("eq", "ne", "lt", "le", "and", "or", "not") else INFINITE
    lo = 0
    if op in ("select", "truncdiv", "fmod"):
        known = [bounds(a)[0] for a in (args[1:] if op == "select" else args)]
        lo = min([0, *known])
    return _table(*args).atom(op, *args, lo=lo, hi=hi)


def scaled(extent: Int, scale: float) -> Int:
    """Return ``floor(extent * (scale + 1e-6))`` in f32, as OpenVINO does. Raise OpError if scale is not finite."""
    if not np.isfinite(np.float32(scale)):
        raise OpError(f"scale {scale} is not finite")
    bits = int(np.float32(scale).view(np.uint32))
    if _static(extent):
        return _scaled(extent, bits)
    lo, hi = bounds(extent)
    return _table(extent).atom("scaled", extent, bits, lo=_scaled(lo, bits), hi=hi if hi is None else _scaled(hi, bits))


def minimum(a: Int, b: Int) -> Int:
    """Return the smaller of two Ints."""
    least, most = bounds(a - b)  # its sign may be known, as for P and P + S
    if most is not None and most <= 0:
        return a
    if least >= 0:
        return b
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    hi = ahi if bhi is None else bhi if ahi is None else min(ahi, bhi)
    return _table(a, b).atom("min", a, b, lo=min(alo, blo), hi=hi)


def maximum(a: Int, b: Int) -> Int:
    """Return the larger of two Ints."""
    least, most = bounds(a - b)
    if most is not None and most <= 0:
        return b
    if least >= 0:
        return a
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    hi = None if ahi is None or bhi is None else max(ahi, bhi)
    return _table(a, b).atom("max", a, b, lo=max(alo, blo), hi=hi)


def ceildiv(a: Int, b: Int) -> Int:
    """Return ``a / b`` rounded up."""
    return -((-a) // b) if _static(a, b) else (a + b - 1) // b


def product(values: Iterable[Int]) -> Int:
    """Return the product of Ints; 1 if there are none."""
    known, total = 1, None
    for value in values:
        if not isinstance(value, Sym):
            known *= value
        else:
            total = value if total is None else total * value
    return known if total is None else total * known


def same(a: Int, b: Int, message: str = "dimensions {0} and {1} must be equal") -> Int:
    """Return the extent of two equal dims. Raise OpError if they differ, at run time if they are unknown until then."""
    if a is b:
        return a
    if _static(a, b):
        if a != b:
            raise OpError(message.format(a, b))
        return a
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    if (ahi is not None and ahi < blo) or (bhi is not None and bhi < alo):
        raise OpError(message.format(a, b))
    _table(a, b).require("same", a, b, message)
    return b if not isinstance(b, Sym) else a


def broadcast(a: Int, b: Int, message: str = "dimensions {0} and {1} do not broadcast") -> Int:
    """Return the NumPy broadcast of two dims. Raise OpError if there is none, at run time if they are unknown now."""
    if a is b:
        return a
    if _static(a, b):
        if a != b and 1 not in (a, b):
            raise OpError(message.format(a, b))
        return b if a == 1 else a
    if not isinstance(a, Sym):
        a, b, message = b, a, message.format("{1}", "{0}")  # the message keeps the caller's order
    if not isinstance(b, Sym):
        if b == 1:
            return a
        if a.lo > 1:
            return same(a, b, message)
        a.table.require("onto", a, b, message)  # `a` may be 1
        return b
    if _operands(a) <= _operands(b):
        return b
    if _operands(b) <= _operands(a):
        return a
    a.table.require("broadcast", a, b, message)
    if a.lo > 1:
        return a
    if b.lo > 1:
        return b
    hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
    return a.table.atom("broadcast", a, b, lo=min(a.lo, b.lo), hi=hi)


def _operands(value: Sym) -> set[Int]:
    """Return the extents that were broadcast to this one, or the extent itself if it is not a broadcast."""
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        (atom,) = value.terms[0][0]
        if atom.op == "broadcast":
            return set().union(*(_operands(a) if isinstance(a, Sym) else {a} for a in atom.args))
    return {value}


def broadcast_shapes(*shapes: Sequence[Int], message: str = "shapes do not broadcast") -> tuple[Int, ...]:
    """Return the NumPy broadcast of several shapes of known rank. Raise OpError if they do not broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Int] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, start=rank - len(shape)):
            result[i] = broadcast(result[i], dim, message + ": {0} and {1}")
    return tuple(result)


def onto(a: Int, b: Int, message: str = "dimension {0} cannot be broadcast to {1}") -> Int:
    """Return ``b``. Raise OpError, now or at run time, if ``a`` is neither 1 nor equal to ``b``."""
    if a is b or (not isinstance(a, Sym) and a == 1):
        return b
    if _static(a, b):
        if a != b:
            raise OpError(message.format(a, b))
    else:
        _table(a, b).require("onto", a, b, message)
    return b
