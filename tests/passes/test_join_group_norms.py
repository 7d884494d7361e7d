"""Decomposed group and instance norms become one layer: matched forms, values, and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.normalization.group_normalization import GroupNorm
from tests.harness import judge
from tests.harness.ir import Port
from tests.harness.without import without

from .test_join_norms import DecomposedNet, moments
from .test_scale_norms import mvn, prepared, random

SHAPE = (2, 6, 4, 5)
SCALE, SHIFT = random(1, 6, 1, 1), random(6, 1, 1, seed=2)

Form = Callable[["Maker", Port], Port]


class Maker(DecomposedNet):
    def reshape(self, x: Port, *shape: int) -> Port:
        port: Port = self.layer("Reshape", "opset1", [x, self.const(np.array(shape))], {"special_zero": True})
        return port

    def back(self, y: Port, x: Port) -> Port:
        """Reshape to the shape of x."""
        shape = self.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"])
        port: Port = self.layer("Reshape", "opset1", [y, shape], {"special_zero": False})
        return port

    def affine(self, x: Port, scale: Any = SCALE, shift: Any = SHIFT) -> Port:
        x = x if scale is None else self.op("Multiply", x, self.const(np.asarray(scale), x.type))
        return x if shift is None else self.op("Add", x, self.const(np.asarray(shift), x.type))


def of_groups(net: Maker, x: Port, *shape: int, axes: tuple[int, ...] = (2,), **attrs: Any) -> Port:
    return net.back(mvn(net, net.reshape(x, *(shape or (0, 3, -1))), [*axes], **attrs), x)


# ---- forms


def grouped(net: Maker, x: Port) -> Port:
    return net.affine(of_groups(net, x))


def instance(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, x, [2, 3]))


def one_group(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, x, [1, 2, 3]))


def shift_only(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, x, [-1, -2]), scale=None)


def outside(net: Maker, x: Port) -> Port:
    return net.affine(of_groups(net, x, eps_mode="outside_sqrt", eps=0.3))


def per_group_before(net: Maker, x: Port) -> Port:
    """Normalise as ONNX does: an InstanceNormalization of groups, with its own scale and shift."""
    y = mvn(net, net.reshape(x, 0, 3, -1), [2])
    return net.affine(net.back(net.affine(y, random(3, 1, seed=3), random(1, 3, 1, seed=4)), x))


def two_axes(net: Maker, x: Port) -> Port:
    """Normalise over two axes, with a scale in the reshaped form, where images share one axis with groups."""
    y = mvn(net, net.reshape(x, -1, 2, 20), [1, 2])
    y = net.affine(y, 2.0, None)
    return net.affine(net.back(y, x))


def keras(net: Maker, x: Port) -> Port:
    y = net.reshape(x, -1, 3, 2, 4, 5)
    scale, shift = (net.const(v.reshape(1, 3, 2, 1, 1), "f32") for v in (SCALE, SHIFT))
    return net.back(moments(net, y, (2, 3, 4), scale, shift), x)


def by_hand(net: Maker, x: Port) -> Port:
    y = net.reshape(x, 0, 3, -1)
    d = net.op("Subtract", y, net.mean(y))
    y = net.op("Divide", d, net.op("Sqrt", net.plus_eps(net.mean(net.op("Multiply", d, d)))))
    y = net.affine(net.back(y, x), shift=None)
    return net.op("Subtract", y, net.const(SHIFT, "f32"))


FORMS: list[Form] = [grouped, instance, one_group, shift_only, outside, per_group_before, two_axes, keras, by_hand]


def build(form: Form, shape: Any = SHAPE, kind: str = "f32") -> Maker:
    net = Maker("norm")
    net.result(form(net, net.parameter(kind, shape, "x")))
    return net


def layers(net: Maker) -> list[str]:
    return [n.op.name for n in prepared(net).ops if n.op.name not in ("Parameter", "Result", "Constant")]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_forms(form: Form, dynamic: bool, device: str) -> None:
    sizes = [SHAPE]
    if dynamic:
        sizes += [(3, 6, 4, 5), (0, 6, 4, 5)] if form in (keras, two_axes) else [(3, 6, 7, 9), (0, 6, 2, 2)]
    shape = [-1 if any(size[i] != d for size in sizes) else d for i, d in enumerate(SHAPE)]
    net = build(form, shape)
    assert layers(net) == ["GroupNormalization"]
    core = ov.Core()
    request = core.compile_model(core.read_model(*net.build()), device).create_infer_request()
    reference = judge.Judge(*net.build())
    for size in sizes:
        x = random(*size, seed=5)
        (expected,) = reference.expect([(x, "f32")]) if x.size else (judge.Expected.of(x),)
        np.testing.assert_allclose(request.infer([x])[0], expected.array, 1e-5, 1e-5)
        assert device == "CPU" or not x.size or request.plan().kernels == 1


@pytest.mark.parametrize("form", [grouped, instance])
def test_kernels_without(form: Form, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "join_group_norms")
    request = ov.Core().compile_model(ov.Core().read_model(*build(form).build()), emulated).create_infer_request()
    request.infer([random(*SHAPE)])
    assert request.plan().kernels == 2


@pytest.mark.parametrize(("kind", "tolerance"), [("f16", 4e-3), ("f64", 1e-5)])
def test_types(kind: str, tolerance: float, device: str) -> None:
    net = build(grouped, kind=kind)
    assert layers(net) == ["GroupNormalization"]
    x = random(*SHAPE, seed=6).astype(kind.replace("f", "float"))
    (expected,) = judge.Judge(*build(grouped).build()).expect([(x.astype(np.float32), "f32")])
    found = ov.Core().compile_model(ov.Core().read_model(*net.build()), device)([x])[0]
    np.testing.assert_allclose(found, expected.array, tolerance, tolerance)


def test_the_last_layer_gives_the_name() -> None:
    (node,) = (n for n in prepared(build(grouped)).ops if isinstance(n.op, GroupNorm))
    assert node.friendly_name.startswith("Add") and (node.op.num_groups, node.op.inside) == (3, True)


# ---- not matched


def per_pixel(net: Maker, x: Port) -> Port:
    return net.affine(of_groups(net, x), random(4, 5))


def per_image(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, x, [2, 3]), random(2, 6, 1, 1))


def across_channels(net: Maker, x: Port) -> Port:
    """Normalise four rows, which are not groups of channels."""
    return net.affine(of_groups(net, x, 0, 4, -1))


def some_pixels(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, x, [3]))


def first_axes(net: Maker, x: Port) -> Port:
    return net.affine(of_groups(net, x, axes=(1,)))


def grows(net: Maker, x: Port) -> Port:
    return net.affine(mvn(net, net.reshape(x, 1, 12, 20), [2]), random(3, 12, 1), None)


def other_shape(net: Maker, x: Port) -> Port:
    """Scale an axis that is not the channels."""
    return net.affine(net.reshape(mvn(net, net.reshape(x, 0, 3, -1), [2]), 0, 4, 6, 5), random(1, 4, 1, 1), None)


def no_terms(net: Maker, x: Port) -> Port:
    return of_groups(net, x)


def the_mean_alone(net: Maker, x: Port) -> Port:
    return net.affine(of_groups(net, x, normalize_variance=False))


def unbiased(net: Maker, x: Port) -> Port:
    y = net.reshape(x, 0, 3, -1)
    d = net.op("Subtract", y, net.mean(y))
    variance = net.op("Multiply", net.mean(net.op("Multiply", d, d)), net.number(40 / 39))
    return net.affine(net.back(net.op("Divide", d, net.op("Sqrt", net.plus_eps(variance))), x))


def used_twice(net: Maker, x: Port) -> Port:
    y = of_groups(net, x)
    net.result(y)
    return net.affine(y)


def given_scale(net: Maker, x: Port) -> Port:
    return net.op("Multiply", mvn(net, x, [2, 3]), net.mean(x, 2, 3))


@pytest.mark.parametrize("form", [per_pixel, per_image, across_channels, some_pixels, first_axes, grows, other_shape,
                                  no_terms, the_mean_alone, unbiased, used_twice, given_scale],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_others_stay(form: Form) -> None:
    assert "GroupNormalization" not in layers(build(form))


def test_layer_norms_stay() -> None:
    net = Maker("norm")
    net.result(net.affine(mvn(net, net.parameter("f32", (-1, 6)), [1]), random(6), random(6)))
    assert layers(net) == ["MVN"]


def test_an_unknown_number_of_channels_stays() -> None:
    assert "GroupNormalization" not in layers(build(instance, (2, -1, 4, 5)))
