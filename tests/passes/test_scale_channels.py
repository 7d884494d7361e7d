"""A batch norm of constants becomes a product and a sum, which may be fused further."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import Target, prepare
from tests.harness import judge
from tests.harness.ir import Net

SHAPE = (2, 3, 4, 5)


def net(kind: str = "f32", version: int = 5, given: int | None = None, shape: Any = SHAPE) -> Net:
    """Build a batch norm of constants (but for the input number ``given``) and an activation."""
    result = Net()
    rng = np.random.default_rng(1)
    x = result.parameter(kind, shape)
    numbers = [
        result.parameter(kind, (3,)) if i == given else result.const(rng.uniform(0.5, 2, 3), kind) for i in range(4)
    ]
    inputs = [x, *numbers] if version == 5 else [*numbers[:2], x, *numbers[2:]]
    norm = result.layer("BatchNormInference", f"opset{version}", inputs, {"epsilon": 0.25}, name="norm")
    result.result(result.layer("Relu", "opset1", [norm], name="relu"))
    return result


def layers(source: Net, fuse: bool = False) -> list[str]:
    model = prepare(ov.Core().read_model(*source.build()), Target("CUDA" if fuse else ""))
    return [n.op.name for n in model.ops if n.op.name not in ("Parameter", "Result", "Constant")]


@pytest.mark.parametrize("version", [1, 5])
@pytest.mark.parametrize(("kind", "shape"), [("f32", SHAPE), ("f64", SHAPE), ("f32", (-1, 3)), ("f32", (-1, -1, -1))])
def test_constants(version: int, kind: str, shape: Any) -> None:
    source = net(kind, version, shape=shape)
    assert layers(source) == ["Multiply", "Add", "Relu"]
    assert layers(source, fuse=True) == ["Fused"]
    x = np.random.default_rng(2).uniform(-4, 4, [d if d > 0 else n for d, n in zip(shape, (2, 3, 7, 5))])
    values = [(x.astype(kind.replace("f", "float")), kind)]
    (expected,) = judge.Judge(*source.build()).expect(values)
    request = ov.Core().compile_model(ov.Core().read_model(*source.build()), "CPU").create_infer_request()
    np.testing.assert_allclose(request.infer([values[0][0]]).to_tuple()[0], expected.array, 1e-5, 1e-5)


@pytest.mark.parametrize(("kind", "given", "shape"), [("f16", None, SHAPE), ("f32", 2, SHAPE), ("f32", None, None)])
def test_those_that_stay(kind: str, given: int | None, shape: Any) -> None:
    """Batch norms stay with 16-bit types, with non-constant inputs, and for an unknown rank."""
    assert layers(net(kind, given=given, shape=shape)) == ["BatchNormInference", "Relu"]
