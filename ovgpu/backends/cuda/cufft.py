"""Fourier transforms through cuFFT, in CuPy's bindings: plans are cached per request, by shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from ovgpu.backends.cuda import rt
from ovgpu.errors import DeviceError
from ovgpu.ops.base.op import Array
from ovgpu.ops.signal.fourier import AXES, is_dense

MAX_PLANS = 256  # cached per request
_FORMS = {"fF": "R2C", "Ff": "C2R", "FF": "C2C", "dD": "D2Z", "Dd": "Z2D", "DD": "Z2Z"}  # by NumPy's dtype codes

Key = tuple[str, tuple[int, ...], int]  # transform type, lengths of the axes, number of signals


class Fft:
    """Plans of one request, which run one after the other on the current stream."""

    def __init__(self) -> None:
        self._plans: dict[Key, Any] = {}

    def transform(self, source: Array, target: Array, axes: int, inverse: bool) -> list[Callable[[], None]] | None:
        """Return the calls of an unscaled transform over the last ``axes`` axes of dense arrays.

        At least one array is complex. A real array has the whole signals, its complex counterpart half the last axis.
        A real target overwrites the source. None if an array is not dense, or has too many axes or elements.
        """
        whole = target if target.dtype.kind == "f" else source
        lengths = whole.shape[-axes:]
        count = prod(whole.shape[:-axes])
        if not 0 < axes <= AXES or 2 * max(source.size, target.size) >= 2**31:
            return None
        if not is_dense(source) or not is_dense(target):
            return None
        library = cufft()
        plan = self._plan(library, (_FORMS[source.dtype.char + target.dtype.char], lengths, count))
        return [partial(plan.fft, source, target, library.CUFFT_INVERSE if inverse else library.CUFFT_FORWARD)]

    def _plan(self, library: Any, key: Key) -> Any:
        """Return a plan with its own work area: it allocates nothing when it runs, so that it can be captured."""
        if key not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            form, lengths, count = key
            self._plans[key] = library.PlanNd(
                lengths, None, 1, 0, None, 1, 0, getattr(library, f"CUFFT_{form}"), count, "C", len(lengths) - 1, None
            )
        return self._plans[key]


def cufft() -> Any:
    """Return CuPy's bindings of cuFFT. DeviceError that says how to install the library if it is not there."""
    try:
        return rt.cupy().cuda.cufft
    except ImportError as e:
        raise DeviceError(f"cuFFT cannot be loaded: {str(e).partition(chr(10))[0]}. {rt.INSTALL}") from e
