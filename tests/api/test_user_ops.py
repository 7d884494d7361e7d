"""User-defined operations, registered with `@ovgpu.register_op` under their own operation set."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu import Op
from tests.harness.ir import feed, take

from .nets import IR, Net
from .sides import compiled


@ov.register_op("Rotate", "user_ops", aliases=["Roll1D"])
class Rotate(Op):
    """Cyclic shift of the last axis by ``shift``, ``times`` times."""

    shift: int
    times: int = 1

    def infer_specs(self, x: Any) -> Any:
        if x.shape == ():
            raise ov.OpError("takes at least one axis")
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        return (xp.roll(x, self.shift * self.times, axis=-1),)


@ov.register_op("MinMax", "user_ops")
class MinMax(Op):
    """Smallest and largest element, as two outputs."""

    def infer_specs(self, x: Any) -> Any:
        return ov.Spec(x.type, ()), ov.Spec(x.type, ())

    def evaluate(self, xp: Any, x: Any) -> Any:
        return xp.min(x), xp.max(x)


def rotated(shape: Any = (2, 5), kind: str = "Rotate", **attributes: Any) -> IR:
    net = Net("user")
    x = net.parameter("f32", shape, "x")
    y = net.layer(kind, "user_ops", [net.layer("Abs", "opset1", [x])], {"shift": 2, **attributes}, name="rot")
    net.result(net.layer("Add", "opset1", [y, net.const(np.float32(1))]))
    return net.build()


X = -np.arange(10, dtype="f4").reshape(2, 5)


@pytest.mark.parametrize("shape", [(2, 5), (-1, 5), (-1, -1), None])
@pytest.mark.parametrize("kind", ["Rotate", "Roll1D"])
def test_runs(shape: Any, kind: str) -> None:
    model = compiled(ov, rotated(shape, kind, times=3))
    for x in (X, 2 * X):
        np.testing.assert_array_equal(model(x)[0], np.roll(np.abs(x), 6, -1) + 1)
    node = next(n for n in model.get_runtime_model().get_ops() if n.friendly_name == "rot")
    assert node.get_type_name() == "Rotate" and node.get_attributes() == {"shift": 2, "times": 3}


def test_several_outputs() -> None:
    net = Net("user")
    low, high = net.layer("MinMax", "user_ops", [net.parameter("f32", (-1,), "x")], outputs=2)
    net.result(low)
    net.result(high)
    result = compiled(ov, net.build())(np.array([3, -1, 2], "f4"))
    assert [value.tolist() for value in result.values()] == [-1, 3]


def test_in_a_body() -> None:
    net, body = Net("outer"), Net("body")
    x = net.parameter("f32", (3, 5), "x")
    row = body.parameter("f32", (1, 5))
    out = body.result(body.layer("Rotate", "user_ops", [row], {"shift": 1}))
    net.result(net.tensor_iterator(body, [feed(x, row, axis=0)], [take(out, axis=0)]))
    x3 = np.arange(15, dtype="f4").reshape(3, 5)
    np.testing.assert_array_equal(compiled(ov, net.build())(x3)[0], np.roll(x3, 1, -1))


def test_errors_name_op_and_layer() -> None:
    with pytest.raises(ov.OpError, match=r"^\[Rotate\] takes at least one axis \(layer 'rot', id 2"):
        ov.Core().read_model(*rotated(()))
    with pytest.raises(ov.Error, match=r"^\[Rotate\].*shift"):
        ov.Core().read_model(*rotated(shift="two"))
    net = Net("user")
    net.result(net.layer("Rotate", "other_ops", [net.parameter("f32", (2,), "x")], {"shift": 1}))
    with pytest.raises(ov.UnsupportedOpError, match="Rotate of other_ops"):
        compiled(ov, net.build())


def test_a_later_registration_replaces() -> None:
    def register(number: int) -> None:
        @ov.register_op("Constantly", "user_ops")
        class Constantly(Op):
            def infer_specs(self, x: Any) -> Any:
                return (x,)

            def evaluate(self, xp: Any, x: Any) -> Any:
                return (x * 0 + number,)

    net = Net("user")
    net.result(net.layer("Constantly", "user_ops", [net.parameter("f32", (2,), "x")]))
    for number in (3, 4):
        register(number)
        assert compiled(ov, net.build())(np.ones(2, "f4"))[0].tolist() == [number] * 2


def test_planned_form_is_used() -> None:
    """A program uses `numpy`, which records calls that write into given outputs, and not `evaluate`."""
    evaluated = []

    @ov.register_op("Double", "user_ops")
    class Double(Op):
        def infer_specs(self, x: Any) -> Any:
            return (x,)

        def evaluate(self, xp: Any, x: Any) -> Any:
            evaluated.append(1)
            return (x + x,)

        def numpy(self, k: Any, inputs: Any, outputs: Any, workspace: Any) -> Any:
            k(np.add, inputs[0], inputs[0], out=outputs[0])

    net = Net("user")
    net.result(net.layer("Double", "user_ops", [net.parameter("f32", (2,), "x")]))
    assert compiled(ov, net.build())(np.ones(2, "f4"))[0].tolist() == [2, 2] and not evaluated


WRITTEN_AS_TYPES = """
from typing import Literal
import ovgpu as ov

Mode = Literal["up", "down"{more}]

@ov.register_op("Sign", "user_ops")
class Sign(ov.Op):
    mode: Mode = "up"
    times: float

    def infer_specs(self, x):
        return (x,)

    def evaluate(self, xp, x):
        return (x * self.times * (1 if self.mode == "up" else -1),)
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_annotations_may_be_types_or_text(future: str) -> None:
    """Annotations are read with and without the future import, also if an op is defined again, as in a notebook."""
    net = Net("user")
    net.result(net.layer("Sign", "user_ops", [net.parameter("f32", (2,), "x")], {"mode": "sideways", "times": 2.5}))
    module = types.ModuleType("signs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "signs", module)
        for more, known in (("", False), (', "sideways"', True)):
            source = compile(future + WRITTEN_AS_TYPES.format(more=more), "signs", "exec", dont_inherit=True)
            exec(source, vars(module))
            if not known:
                with pytest.raises(ov.OpError, match="sideways"):
                    compiled(ov, net.build())
            else:
                assert compiled(ov, net.build())(np.ones(2, "f4"))[0].tolist() == [-2.5, -2.5]


def test_the_old_name_of_infer_specs_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"OldName\.infer is called infer_specs now"):

        class OldName(Op):  # as a base that is itself no operation
            def infer(self, x: Any) -> Any:
                return (x,)

    @ov.register_op("Increment", "user_ops")
    class Increment(OldName):
        def evaluate(self, xp: Any, x: Any) -> Any:
            return (x + 1,)

    net = Net("old")
    net.result(net.layer("Increment", "user_ops", [net.parameter("f32", (2,), "x")]))
    compiled = ov.compile_model(ov.read_model(*net.build()), "CPU")
    assert compiled([np.float32([1, 2])])[0].tolist() == [2, 3]
