"""Whole models against stored expectations (see make.py), and against OpenVINO if installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness.models.drive import (
    DATA,
    OPENVINO_F32,
    TOLERANCE,
    Array,
    Call,
    Decoder,
    Expected,
    infer,
    relative_error,
    replay,
)
from tests.harness.models.recurrent import lstm_state
from tests.harness.models.spec import spec_tensor_iterator

SPEC_SEED = 11  # seed of make.py's expectations
NAMES = sorted(file.parent.name for file in DATA.glob("*/model.xml"))
EXPECTED = {name: Expected.load(DATA / name / "expected.npz") for name in NAMES}
DECODERS = [name for name in NAMES if EXPECTED[name].greedy]
STATEFUL = ["gpt2", "llama", "lstm_state", "whisper_decoder"]
STATELESS = [name for name in NAMES if name not in {*DECODERS, *STATEFUL}]

IR = tuple[bytes, bytes]


def load(name: str, device: str) -> tuple[Any, Expected]:
    return ov.Core().compile_model(DATA / name / "model.xml", device), EXPECTED[name]


def compile_ir(ir: IR, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(model=ir[0], weights=ir[1]), device)


def check(actual: tuple[Array, ...], call: Call, where: str, tolerance: float = TOLERANCE) -> None:
    """Assert equal shapes and dtypes, and finite values within tolerance times the largest of the output."""
    assert len(actual) == len(call.outputs), where
    for i, (a, e) in enumerate(zip(actual, call.outputs)):
        assert (a.shape, a.dtype) == (e.shape, e.dtype), f"{where}, output {i}"
        assert np.isfinite(a).all(), f"{where}, output {i} is not finite"
        error = relative_error(a, e)
        assert error <= tolerance, f"{where}, output {i}: differs by {error:.1e} of the largest value"


def check_calls(name: str, device: str, count: int | None = None) -> None:
    """Assert that the first ``count`` calls of a model, or all, give the stored outputs."""
    compiled, expected = load(name, device)
    calls = expected.calls[:count]
    for k, (call, actual) in enumerate(zip(calls, replay(compiled, calls))):
        check(actual, call, f"{name}, call {k}", expected.tolerance)


@pytest.mark.drawn(24)
@pytest.mark.parametrize("name", NAMES)
def test_expected_outputs(name: str, device: str) -> None:
    check_calls(name, device)


@pytest.mark.parametrize("name", ["yolo", "yolo_int8", "unet", "segformer", "detector", "swin"])
def test_bounds_of_dynamic_shapes(name: str) -> None:
    """At the outputs, extents that are known when the model runs have the lower bounds that OpenVINO finds."""
    openvino = pytest.importorskip("openvino")
    shapes = []
    for library in (openvino, ov):
        model = library.Core().read_model(DATA / name / "model.xml")
        model.reshape({p: [d if i == 1 else -1 for i, d in enumerate(p.partial_shape)] for p in model.inputs})
        shapes.append([str(port.partial_shape) for port in model.outputs])
    assert shapes[0] == shapes[1]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", STATELESS)
def test_static_shapes(name: str) -> None:
    core, expected = ov.Core(), EXPECTED[name]
    for k, call in enumerate(expected.calls[:2]):
        model = core.read_model(DATA / name / "model.xml")
        model.reshape({key: ov.PartialShape([*a.shape]) for key, a in call.inputs.items()})
        found = next(replay(core.compile_model(model, "CPU"), [call]))
        check(found, call, f"{name}, call {k}, static", expected.tolerance)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", STATEFUL)
def test_requests_keep_their_own_state(name: str, device: str) -> None:
    """Two requests of one compiled model have separate states; the second is three calls behind."""
    compiled, expected = load(name, device)
    calls, lag = expected.calls, 3
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    for k in range(len(calls) + lag):
        if k < len(calls):
            check(infer(first, calls[k]), calls[k], f"{name}, first request, call {k}")
        if k >= lag:
            check(infer(second, calls[k - lag]), calls[k - lag], f"{name}, second request, call {k - lag}")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens(name: str) -> None:
    compiled, expected = load(name, "CPU")
    for run in expected.greedy:
        tokens = Decoder(compiled, run.context).greedy(run.prompt, run.tokens.shape[1])
        np.testing.assert_array_equal(tokens, run.tokens, err_msg=f"{name}, prompt {run.prompt.tolist()}")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("document", [False, True], ids=["today", "document"])
def test_spec_tensor_iterator(document: bool, device: str) -> None:
    compiled = compile_ir(spec_tensor_iterator(SPEC_SEED, document=document), device)
    request = compiled.create_infer_request()
    for k, call in enumerate(Expected.load(DATA / "spec_tensor_iterator" / "expected.npz").calls):
        request.infer([call.inputs[key] for key in "xhc"])
        check((np.array(request.get_output_tensor(0).data),), call, f"call {k}")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("make", [spec_tensor_iterator, pytest.param(lstm_state, marks=pytest.mark.quick)])
def test_side_by_side_with_openvino(make: Callable[[int], IR], device: str) -> None:
    """Ten inferences, with a reset in the middle, agree with OpenVINO within 1e-5."""
    openvino = pytest.importorskip("openvino")
    ir = make(31)
    core = openvino.Core()
    reference = core.compile_model(core.read_model(model=ir[0], weights=ir[1]), "CPU", OPENVINO_F32)
    random = np.random.RandomState(32)
    shapes = {port.get_any_name(): port.shape for port in reference.inputs}
    calls = [
        Call({k: random.standard_normal([*s]).astype(np.float32) for k, s in shapes.items()}, reset=i == 5)
        for i in range(10)
    ]
    pairs = zip(replay(reference, calls), replay(compile_ir(ir, device), calls), strict=True)
    for k, (expected, actual) in enumerate(pairs):
        assert len(actual) == len(expected)
        for e, a in zip(expected, actual):
            assert (a.shape, a.dtype) == (e.shape, e.dtype)
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5, err_msg=f"inference {k}")
