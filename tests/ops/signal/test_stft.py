"""STFT and ISTFT against OpenVINO: frames and windows, layouts, lengths, element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep

KINDS = ("f16", "bf16", "f64")


def stft(
    signal: Sequence[int] = (3, 56),
    window: int = 7,
    size: int | In = 11,
    step: int | In = 3,
    kind: str = "f32",
    transposed: bool = False,
    **kw: object,
) -> Case:
    numbers = [x if isinstance(x, In) else const(x) for x in (size, step)]
    return Case(
        "STFT",
        "opset15",
        [In(signal, kind), In((window,), kind), *numbers],
        {"transpose_frames": transposed},
        **{"tol": Sum(max(int(np.max(numbers[0].data)), 1)), **kw},
    )


def istft(
    frames: int = 16,
    batch: Sequence[int] = (4,),
    window: int = 7,
    size: int | In = 11,
    step: int | In = 3,
    samples: int | In | None = None,
    kind: str = "f32",
    center: bool = False,
    normalized: bool = False,
    bins: int | None = None,
    **kw: object,
) -> Case:
    """Return an ISTFT whose windows are far from zero, since it divides by the sums of their squares."""
    numbers = [x if isinstance(x, In) else const(x) for x in (size, step, samples) if x is not None]
    shape = (*batch, int(numbers[0].data) // 2 + 1 if bins is None else bins, frames, 2)
    return Case(
        "ISTFT",
        "opset16",
        [In(shape, kind), In((window,), kind, low=0.5, high=1.5), *numbers],
        {"center": center, "normalized": normalized},
        **{"tol": Sum(max(int(np.max(numbers[0].data)), 1)), **kw},
    )


STFTS = [
    *(
        stft(signal, window, transposed=transposed, rankless=True, id=f"{signal} {window} {transposed}")
        for signal in ((56,), (3, 56))
        for window in (7, 11)
        for transposed in (False, True)
    ),
    *(
        stft((2, 41), window, size, step, transposed=True, id=f"{window} of {size} by {step}")
        for window, size, step in ((1, 1, 3), (6, 12, 5), (41, 41, 1), (5, 12, 70), (3, 2, 2), (1, 2, 1))
        if window <= size
    ),
    *(stft(kind=kind, transposed=transposed, id=f"{kind} {transposed}") for kind in KINDS for transposed in (0, 1)),
    stft((0, 56), expect=lambda *_: np.zeros((0, 16, 6, 2), np.float32), id="no signals"),
    stft((5, 400), 60, 100, 30, transposed=True, id="long"),
    stft(size=given(11, "i64"), step=given(3, "i32"), id="given numbers"),
    stft(window=12, error="a window of 12 elements is longer than a frame of 11"),
    stft(window=0, error="the window has no elements"),
    stft(size=57, error="a frame of 57 elements is longer than a signal of 56"),
    stft(size=0, error="frame size 0 is not positive"),
    stft(step=-1, error="frame step -1 is not positive"),
    stft((2, 3, 56), error="the signal must have rank 1 or 2, not 3"),
    stft(kind="i32", error="the signal must be floating-point numbers, not i32"),
    stft(size=const([11]), error="the frame size must have rank 0, not 1"),
    stft(step=const(3.0, "f32"), error="the frame step must be integers, not f32"),
    Case("STFT", "opset15", [In((3, 56)), In((7,), "f16"), const(11), const(3)], error="f16"),
]
ISTFTS = [
    *(
        istft(
            16,
            batch,
            window,
            samples=samples,
            center=center,
            normalized=normalized,
            rankless=True,
            id=f"{batch} {window} {samples} {center} {normalized}",
        )
        for batch, window in (((), 7), ((4,), 11))
        for samples in (None, 40, 64)
        for center in (False, True)
        for normalized in (False, True)
    ),
    *(
        istft(5, (2,), window, size, step, center=center, id=f"{window} of {size} by {step} {center}")
        for window, size, step in ((1, 1, 1), (6, 12, 5), (9, 10, 1), (5, 8, 20), (1, 2, 1), (12, 12, 12))
        for center in (False, True)
    ),
    istft(1, window=11, id="one frame"),
    *(istft(kind=kind, center=center, id=f"{kind} {center}") for kind in KINDS for center in (False, True)),
    istft(batch=(0,), expect=lambda *_: np.zeros((0, 56), np.float32), id="no signals"),
    istft(40, (2,), 60, 100, 30, center=True, id="long"),
    istft(size=given(11, "i64"), step=given(3, "i32"), id="given numbers"),
    istft(size=given(12, "i64"), step=given(3, "i64"), samples=given(50, "i32"), center=True, id="given length"),
    istft(samples=const([50], "i32"), id="length as a vector"),
    istft(samples=0, expect=lambda *_: np.zeros((4, 0), np.float32), id="no length"),
    istft(window=12, error="a window of 12 elements is longer than a frame of 11"),
    istft(size=0, bins=1, error="frame size 0 is not positive"),
    istft(step=0, error="frame step 0 is not positive"),
    istft(bins=7, error="spectra have 7 elements instead of 6"),
    istft(frames=0, batch=(0,), error="there are no frames"),
    istft(samples=const([40, 40]), error="2 signal lengths instead of one"),
    istft(batch=(2, 3), error="the data must have rank 3 or 4, not 5"),
    Case(
        "ISTFT",
        "opset16",
        [In((6, 16, 3)), In((7,)), const(11), const(3)],
        {"center": False, "normalized": False},
        error="the last axis has 3 elements, but complex numbers are pairs",
    ),
]
test_stft = check(STFTS)
test_istft = check(ISTFTS)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 30))
    window, step = draw(st.integers(1, size)), draw(st.integers(1, 40))
    batch, kind = draw(st.sampled_from(((), (1,), (3,)))), draw(st.sampled_from(("f32", "f32", "f16", "bf16")))
    if draw(st.booleans()):
        return stft((*batch, draw(st.integers(size, 90))), window, size, step, kind, draw(st.booleans()))
    frames, center = draw(st.integers(1, 9)), draw(st.booleans())
    samples = draw(st.none() | st.integers(1, 120))
    return istft(frames, batch, window, size, step, samples, kind, center, draw(st.booleans()))


test_random = sweep(drawn())
