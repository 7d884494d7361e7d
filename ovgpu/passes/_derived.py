"""Constants that passes compute from weights. Models that are rewritten alike share them, such as those of batchers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import finalize, ref

import numpy as np

from ovgpu.types.mapped import Array, memory_of


class _Derived(NamedTuple):
    """Constant in use. Its key names the rules, and the memory of the constants ``origins`` that it comes from. They
    are held, so that no other constant gets their memory; constants between them and this one are not."""

    key: Any
    constant: ref[Array]
    origins: tuple[Array, ...]


_by_key: dict[Any, _Derived] = {}
_by_id: dict[int, _Derived] = {}


def derived(rule: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
    """Return ``compute()``, or the constant that an earlier call with this rule and these sources has returned, if it
    is still in use.

    ``rule`` names all that the result depends on besides the sources. Sources in memory that can be written are
    computed from anew, because their elements may have changed.
    """
    known = [_by_id.get(id(source)) for source in sources]
    if not all(of is not None or _is_fixed(source) for source, of in zip(sources, known)):
        return compute()
    key = rule, *(memory_of(source) if of is None else of.key for source, of in zip(sources, known))
    earlier = _by_key.get(key)
    result = None if earlier is None else earlier.constant()
    if result is None:
        result = compute()
        origins = [source for source, of in zip(sources, known) if of is None]
        origins += [origin for of in known if of is not None for origin in of.origins]
        result.flags.writeable = False
        entry = _by_key[key] = _by_id[id(result)] = _Derived(key, ref(result), tuple(origins))
        finalize(result, _forget, entry, id(result)).atexit = False
    return result


def _forget(entry: _Derived, identity: int) -> None:
    if _by_key.get(entry.key) is entry:
        del _by_key[entry.key]
    if _by_id.get(identity) is entry:
        del _by_id[identity]


def _is_fixed(array: Any) -> bool:
    """Return whether nobody can write to the memory of an array."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return True
