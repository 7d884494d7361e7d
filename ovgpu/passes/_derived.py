"""Constants that passes compute from weights. Models that are rewritten alike share them, such as those of batchers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import finalize, ref

import numpy as np

from ovgpu.types.mapped import Array, MappedFile, memory_of


class _Derived(NamedTuple):
    """Constant in use. Its key names the rules, and the memory of the constants ``origins`` that it comes from. They
    are held, so that no other constant gets their memory; constants between them and this one are not."""

    key: Any
    constant: ref[Array]
    origins: tuple[Array, ...]


# NOTE: a signal handler may raise between any two lines, so that an entry may outlive its constant. Each look-up tests
# whether the entry's constant is alive, and is the one looked for.
_by_key: dict[Any, _Derived] = {}
_by_id: dict[int, _Derived] = {}


def derived(rule: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
    """Return ``compute()``, or the constant that an earlier call with this rule and these sources has returned, if it
    is still in use.

    ``rule`` names all that the result depends on besides the memory of the sources, such as their element types.
    Sources in memory that can be written are computed from anew, because their elements may have changed.
    """
    known = [_entry(source) for source in sources]
    if not all(of is not None or is_fixed(source) for source, of in zip(sources, known)):
        return compute()
    key = rule, *(memory_of(source) if of is None else of.key for source, of in zip(sources, known))
    earlier = _by_key.get(key)
    result = None if earlier is None else earlier.constant()
    if result is None:
        result = compute()
        if any(result is source for source in sources):  # it would hold itself as its origin
            return result
        origins = [source for source, of in zip(sources, known) if of is None]
        origins += [origin for of in known if of is not None for origin in of.origins]
        result.flags.writeable = False
        entry = _Derived(key, ref(result), tuple(origins))
        finalize(result, _forget, entry, id(result)).atexit = False
        _by_key[key] = _by_id[id(result)] = entry
    return result


def _entry(array: Array) -> _Derived | None:
    """Return the entry of a constant that `derived` has returned, None for any other array."""
    entry = _by_id.get(id(array))
    return entry if entry is not None and entry.constant() is array else None


def _forget(entry: _Derived, identity: int) -> None:
    if _by_key.get(entry.key) is entry:
        del _by_key[entry.key]
    if _by_id.get(identity) is entry:
        del _by_id[identity]


def is_fixed(array: Any) -> bool:
    """Return whether nobody can write to the memory of an array: it lies in a mapped file, or in bytes."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, (bytes, MappedFile))
