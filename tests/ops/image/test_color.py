"""NV12 and I420 to RGB and BGR, and back, against OpenVINO: one plane or several, element types, and colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.image.color import NV12toRGB
from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array, api

OPS = ("NV12toRGB", "NV12toBGR", "I420toRGB", "I420toBGR")
BACK = ("RGBtoNV12", "BGRtoNV12")


def image(kind: str, *shape: int) -> In:
    return In(shape, kind, low=0, high=255)


def convert(
    op: str, n: int = 2, height: int = 4, width: int = 6, kind: str = "u8", planes: bool = False, **kw: object
) -> Case:
    """Return a conversion from one plane, or from separate ``planes``."""
    y, half = image(kind, n, height, width, 1), (n, height // 2, width // 2)
    whole = [image(kind, n, height * 3 // 2, width, 1)]
    split = [y, image(kind, *half, 2)] if op.startswith("NV12") else [y, image(kind, *half, 1), image(kind, *half, 1)]
    return Case(op, "opset8", split if planes else whole, **kw)


def wrong(op: str, *shapes: Sequence[int], kind: str = "u8", error: str) -> Case:
    return Case(op, "opset8", [image(kind, *shape) for shape in shapes], error=error)


def separate(
    op: str, n: int = 2, height: int = 4, width: int = 6, kind: str = "u8", single: bool = True, **kw: Any
) -> Case:
    """Return a conversion to one plane, or two; the openvino wheel infers shapes of these ops, but cannot run them."""

    def planes(x: Array) -> list[Array]:
        """Apply the formulas to each pixel in f32, and round where OpenVINO's reference rounds."""
        wide = x[..., ::-1] if op.startswith("BGR") else x
        whole = (lambda v: np.floor(v + np.float32(0.5))) if kind == "u8" else (lambda v: v)
        y, u, v = np.zeros((3, n, height, width), np.float32)
        for at in np.ndindex(n, height, width):
            r, g, b = wide[at].astype(np.float32)
            for plane, (red, green, blue, more) in zip((y, u, v), SHARES):
                plane[at] = whole(np.clip(red * r + green * g + blue * b + more, 0, 255))
        uv = np.zeros((n, height // 2, width // 2, 2), np.float32)
        for at in np.ndindex(n, height // 2, width // 2, 2):
            i, row, column, number = at
            four = (u, v)[number][i, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            uv[at] = whole(four.sum(dtype=np.float32) / 4)
        if single:
            return [np.concatenate([y, uv.reshape(n, height // 2, width)], 1)[..., None].astype(x.dtype)]
        return [y[..., None].astype(x.dtype), uv.astype(x.dtype)]

    return Case(
        op,
        "opset17",
        [image(kind, n, height, width, 3)],
        {"single_plane": single},
        1 if single else 2,
        **{"expect": planes} | kw,
    )


SHARES = np.array([(0.257, 0.504, 0.098, 16), (-0.148, -0.291, 0.439, 128), (0.439, -0.368, -0.071, 128)], np.float32)

CASES = [
    *(
        convert(op, kind=kind, planes=planes, rankless=kind == "u8")
        for op in OPS
        for kind in ("u8", "f32")
        for planes in (False, True)
    ),
    *(
        convert(op, kind=kind, planes=planes, id=f"{kind} {planes}")
        for op in OPS
        for kind in ("f16", "bf16")
        for planes in (False, True)
    ),
    *(convert(op, kind="f64", tol=1e-4, id="f64") for op in OPS[::3]),  # the plugin's f32 terms reach 500
    *(convert(op, 1, 2, 2, id="smallest") for op in OPS),
    *(convert(op, 1, 14, 90, planes=True, id="larger than a block") for op in OPS),
    *(convert(op, 3, 62, 2, id="tall") for op in OPS),
    *(convert(op, 5, 2, 10, "f32", True, id="wide") for op in OPS),
    convert("NV12toRGB", 0, planes=True, expect=lambda *_: np.zeros((0, 4, 6, 3), np.uint8), id="no images"),
    *(
        case
        for op in OPS
        for case in (
            wrong(op, (1, 4, 6, 1), error="height of all planes, 4, is no multiple of 3"),
            wrong(op, (1, 9, 5, 1), error="width 5 is odd"),
            wrong(op, (6, 6, 1), error="images must have rank 4, not 3"),
            wrong(op, (1, 6, 6, 3), error="3 channels instead of 1"),
            wrong(op, (1, 6, 6, 1), kind="i32", error="element type i32 is neither u8 nor real"),
        )
    ),
    wrong("NV12toRGB", (1, 5, 6, 1), (1, 2, 3, 2), error="height 5 is odd"),
    wrong("NV12toRGB", (1, 4, 6, 1), (1, 2, 4, 2), error="4 columns of colours instead of 3"),
    wrong("NV12toBGR", (2, 4, 6, 1), (1, 2, 3, 2), error="1 images of colours instead of 2"),
    wrong("NV12toBGR", (1, 4, 6, 1), (1, 2, 3, 1), error="1 channels instead of 2"),
    wrong("I420toRGB", (1, 4, 6, 1), (1, 2, 3, 1), error="2 inputs instead of 1 or 3"),
    wrong("I420toBGR", (1, 4, 6, 1), (1, 2, 3, 1), (1, 1, 3, 1), error="1 rows of colours instead of 2"),
    *(
        separate(op, kind=kind, single=single, rankless=kind == "u8")
        for op in BACK
        for kind in ("u8", "f32")
        for single in (True, False)
    ),
    *(separate(op, kind=kind, single=single) for op in BACK for kind in ("f16", "bf16") for single in (True, False)),
    *(separate(op, kind="f64", tol=1e-4) for op in BACK),  # the weights above are f32
    *(separate(op, 1, 2, 2, id="smallest") for op in BACK),
    *(separate(op, 1, 14, 90, single=False, id="larger than a block") for op in BACK),
    *(separate(op, 3, 62, 2, id="tall") for op in BACK),
    *(separate(op, 5, 2, 10, "f32", id="wide") for op in BACK),
    *(separate(op, 0, id="no images") for op in BACK),
    *(
        separate(
            op, **{"height" if size else "width": 5}, error=f"the image's {'height' if size else 'width'} 5 is odd"
        )
        for op in BACK
        for size in (True, False)
    ),
    *(
        Case(op, "opset17", [image(kind, *shape)], error=error)
        for op in BACK
        for kind, shape, error in (
            ("u8", (4, 6, 3), "images must have rank 4, not 3"),
            ("f32", (1, 4, 6, 1), "1 channels instead of 3"),
            ("i8", (1, 4, 6, 3), "element type i8 is neither u8 nor real"),
        )
    ),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    n, height, width = (draw(st.integers(1, most)) for most in (3, 9, 9))
    if draw(st.integers(0, 2)) == 2:
        return separate(
            draw(st.sampled_from(BACK)),
            n,
            2 * height,
            2 * width,
            draw(st.sampled_from(("u8", "f32", "f16"))),
            draw(st.booleans()),
        )
    return convert(
        draw(st.sampled_from(OPS)),
        n,
        2 * height,
        2 * width,
        draw(st.sampled_from(("u8", "f32", "f16"))),
        draw(st.booleans()),
    )


test_random = sweep(drawn(), 150)


def test_all_values_of_y_and_v() -> None:
    """The images cover all values of Y and V, and some of U."""
    ov = pytest.importorskip("openvino")
    from openvino import opset8

    colours = np.zeros((16, 256, 128, 2), np.uint8)
    colours[..., 0], colours[..., 1] = np.arange(3, 256, 16)[:, None, None], np.arange(256)[:, None]
    planes = [np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (16, 512, 256, 1)), colours]
    ports = [opset8.parameter(x.shape, np.uint8) for x in planes]
    model = ov.Core().compile_model(ov.Model([opset8.nv12_to_rgb(*ports)], ports), "CPU")
    np.testing.assert_array_equal(NV12toRGB().evaluate(NUMPY, *planes)[0], model(planes)[0])


@pytest.mark.parametrize("variant", ["static", "dynamic", "rankless"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("op", BACK)
def test_shapes_of_planes(op: str, single: bool, variant: Any) -> None:
    """Shapes and types of the outputs are those that openvino infers, which cannot compute the outputs."""
    ov = pytest.importorskip("openvino")
    ir = separate(op, kind="f16", single=single).net.build(variant)
    found, wanted = (
        [(str(p.get_partial_shape()), p.get_element_type().get_type_name()) for p in model.outputs]
        for model in (api().Core().read_model(*ir), ov.Core().read_model(*ir))
    )
    assert found == wanted
