"""Precision that a device computes in: as properties request it and as a compiled model reports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import rt
from tests.emulator import blas_emu, blaslt_emu, cupy_emu, state
from tests.harness.ir import Net
from tests.harness.models.drive import DATA

from .test_devices import fake, with_capability

PRECISION, MODE, CACHE = "INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT", "KV_CACHE_PRECISION"


@pytest.fixture
def card() -> Iterator[None]:
    rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
    yield
    rt.bind(None, None)


def product(n: int = 64) -> Net:
    net = Net("product")
    x, w = net.parameter("f32", (2, n), "x"), net.const(np.random.default_rng(8).uniform(-1, 1, (n, n)).astype("f4"))
    net.result(net.layer("MatMul", "opset1", [x, w], {"transpose_a": False, "transpose_b": False}))
    return net


def compiled(library: Any, device: str, config: Any) -> Any:
    core = library.Core()
    return core.compile_model(core.read_model(*product().build()), device, config)


def chosen(device: str, config: Any) -> tuple[str, str]:
    model = compiled(ov, device, config)
    precision, cache = (model.get_property(name).get_type_name() for name in (PRECISION, CACHE))
    return precision, cache


@pytest.mark.parametrize(
    ("config", "cpu", "card_"),
    [
        ({}, "f32", "dynamic"),
        ({MODE: "ACCURACY"}, "f32", "dynamic"),
        ({MODE: "PERFORMANCE"}, "f32", "f16"),
        ({MODE: "PERFORMANCE", PRECISION: "f32"}, "f32", "f32"),
        ({MODE: "PERFORMANCE", PRECISION: "dynamic"}, "dynamic", "dynamic"),
        ({MODE: "ACCURACY", PRECISION: "bf16"}, "bf16", "bf16"),
        ({PRECISION: ov.Type.f16}, "f16", "f16"),
        ({PRECISION: openvino.Type.f16}, "f16", "f16"),
        ({PRECISION: "undefined"}, "dynamic", "dynamic"),
        ({PRECISION: "tf32"}, "f32", "tf32"),
    ],
)
def test_what_is_chosen(config: Any, cpu: str, card_: str, card: None) -> None:
    assert chosen("CPU", config) == (cpu, cpu)
    assert chosen("NVIDIA", config) == (card_, "dynamic" if card_ == "tf32" else card_)


def test_the_cache_may_have_another(card: None) -> None:
    assert chosen("CPU", {CACHE: "f16"}) == ("f32", "f16")
    assert chosen("NVIDIA", {PRECISION: "bf16", CACHE: "f32"}) == ("bf16", "f32")
    for device, precision in (("CPU", "f32"), ("NVIDIA", "dynamic")):
        assert [chosen(device, {CACHE: kind}) for kind in ("u8", "i8")] == [(precision, "u8"), (precision, "i8")]


def test_a_device_says_what_it_would_choose(card: None) -> None:
    core = ov.Core()
    core.set_property({MODE: "PERFORMANCE"})
    assert [core.get_property(device, PRECISION) for device in ("CPU", "NVIDIA")] == [ov.Type.f32, ov.Type.f16]
    core.set_property("NVIDIA", {PRECISION: "bf16"})
    assert [core.get_property(device, PRECISION) for device in ("CPU", "NVIDIA")] == [ov.Type.f32, ov.Type.bf16]
    model = core.compile_model(core.read_model(*product().build()), "NVIDIA")
    core.set_property("NVIDIA", {PRECISION: "f32"})
    assert model.get_property(PRECISION) == ov.Type.bf16


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_a_card_without_bf16_and_tf32(capability: tuple[int, int], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, getDeviceProperties=with_capability(*capability))
    core = ov.Core()
    core.set_property("NVIDIA", {PRECISION: kind})
    assert core.get_property("NVIDIA", PRECISION).get_type_name() == ("f32" if capability < (8, 0) else kind)
    model = core.read_model(*product().build())
    for config in ({}, {PRECISION: "dynamic"}):
        assert core.compile_model(model, "NVIDIA", config)._compilation.backend.blas.tf32 == (capability >= (8, 0))


@pytest.mark.parametrize(
    ("config", "unit"),
    [
        ({}, 2**-11),
        ({PRECISION: "dynamic"}, 2**-11),
        ({PRECISION: "tf32"}, 2**-11),
        ({PRECISION: "tf32", MODE: "ACCURACY"}, 2**-11),
        ({MODE: "PERFORMANCE", PRECISION: "dynamic"}, 2**-11),
        ({MODE: "ACCURACY"}, 2**-22),
        ({PRECISION: "f32"}, 2**-22),
        ({MODE: "PERFORMANCE", PRECISION: "f32"}, 2**-22),
        ({MODE: "ACCURACY", PRECISION: "dynamic"}, 2**-22),
        ({MODE: "PERFORMANCE"}, 2**-11),
        ({PRECISION: "bf16"}, 2**-8),
    ],
)
def test_what_is_computed(config: Any, unit: float, card: None) -> None:
    """The error is within the unit roundoff of the precision, and not far below it."""
    x = np.random.default_rng(9).uniform(-1, 1, (2, 64)).astype("f4")
    expected = compiled(ov, "CPU", {})([x])[0].astype("f8")
    found = compiled(ov, "NVIDIA", config)([x])[0]
    assert found.dtype == np.float32
    error = np.abs(found - expected).max()
    assert error < 64**0.5 * unit and (error > unit / 8 or unit < 2**-20)


def test_a_cache_is_never_in_tf32(card: None) -> None:
    for name in (CACHE, "KEY_CACHE_PRECISION"):
        with pytest.raises(RuntimeError, match="no tensor is of TF32"):
            compiled(ov, "NVIDIA", {name: "tf32"})


def test_tf32_leaves_tensors_of_16_bits(card: None) -> None:
    """The hint is the mode of a card without a hint, for parts in f16 and bf16 as well."""
    net = Net()
    x = net.parameter("f16", (2, 64), "x")
    w = net.const(np.random.default_rng(8).uniform(-1, 1, (64, 64)), "f16")
    net.result(net.layer("MatMul", "opset1", [x, w], {"transpose_a": False, "transpose_b": False}, ["f16"]))
    core = ov.Core()
    models = [core.compile_model(core.read_model(*net.build()), "NVIDIA", c) for c in ({}, {PRECISION: "tf32"})]
    kinds = [[node.ports[0].spec.type for node in model._compilation.model.ops] for model in models]
    assert kinds[0] == kinds[1] and ov.Type.f32 not in kinds[0]


def test_tf32_outlives_export_and_import(card: None) -> None:
    model = compiled(ov, "NVIDIA", {PRECISION: "tf32", MODE: "ACCURACY"})
    exported = model.export_model()
    again = ov.Core().import_model(exported, "NVIDIA")
    x = np.random.default_rng(9).uniform(-1, 1, (2, 64)).astype("f4")
    assert again.get_property(PRECISION).get_type_name() == "tf32"
    np.testing.assert_array_equal(again([x])[0], model([x])[0])


def test_a_plan_names_steps_in_tf32(card: None) -> None:
    for config, marked in (({}, True), ({MODE: "ACCURACY"}, False)):
        request = compiled(ov, "NVIDIA", config).create_infer_request()
        request.infer([np.ones((2, 64), np.float32)])
        (step,) = (step for step in request.plan().steps if step.op == "MatMul")
        assert step.tf32 == marked and ("f32[2,64] in tf32" in str(request.plan())) == marked


# ---- options of the model


def with_options(library: Any, options: dict[str, str]) -> Any:
    model = library.Core().read_model(DATA / "llama" / "model.xml")
    for name, value in options.items():
        model.set_rt_info(value, ["runtime_options", name])
    return model


@pytest.mark.parametrize(
    "config", [{}, {CACHE: "f32"}, {CACHE: "bf16"}, {PRECISION: "f32"}, {MODE: "ACCURACY"}], ids=str
)
@pytest.mark.parametrize("option", ["f16", "bf16", "f32", "u8"])
def test_options_are_reported(option: str, config: dict[str, str]) -> None:
    """The model's own type of keys and values reads as in OpenVINO; NumPy stores them as without it."""
    models = [with_options(library, {CACHE: option}) for library in (openvino, ov)]
    theirs, ours = (
        library.Core().compile_model(model, "CPU", config) for library, model in zip((openvino, ov), models)
    )
    assert ours.get_property(CACHE).get_type_name() == theirs.get_property(CACHE).get_type_name()
    stored = {info.type.get_type_name() for info in ours._compilation.initial.infos.values()}
    assert stored == {config.get(CACHE, "f32")}


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({}, "f16"),
        ({PRECISION: "tf32"}, "f16"),
        ({CACHE: "f32"}, "f32"),
        ({CACHE: "bf16"}, "bf16"),
        ({"KEY_CACHE_PRECISION": "bf16", "VALUE_CACHE_PRECISION": "bf16"}, "bf16"),
        ({PRECISION: "f32"}, "f32"),
        ({MODE: "ACCURACY"}, "f32"),
    ],
    ids=str,
)
def test_options_on_a_card(config: dict[str, str], stored: str, emulated: str) -> None:
    """A card stores keys and values in the model's own type unless another one, f32 or accuracy was asked for."""
    model = with_options(ov, {CACHE: "f16", "ACTIVATIONS_SCALE_FACTOR": "8.0"})
    compiled = ov.Core().compile_model(model, emulated, config)
    assert {info.type.get_type_name() for info in compiled._compilation.initial.infos.values()} == {stored}
    assert compiled.get_property("ACTIVATIONS_SCALE_FACTOR") == 8


@pytest.mark.parametrize(("option", "error"), [("f16", 2e-3), ("bf16", 1.5e-2)])
def test_options_keep_a_decode_step_in_one_graph(option: str, error: float, emulated: str) -> None:
    """Attention computes in the type of its keys and values, so that these are not converted as a whole."""

    def arrays(begin: int, tokens: list[int]) -> dict[str, Any]:
        end = begin + len(tokens)
        inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, end), np.int64)}
        return {**inputs, "position_ids": np.arange(begin, end)[None], "beam_idx": np.zeros(1, np.int32)}

    steps = [arrays(0, [5, 6, 7]), *(arrays(begin, [begin]) for begin in range(3, 7))]
    found = []
    for options in ({}, {CACHE: option}):
        model = ov.Core().compile_model(with_options(ov, options), emulated)
        request = model.create_infer_request()
        for step in steps:
            state.counters.reset()
            logits = request.infer(step)[0].copy()
        assert (state.counters.graph_launches, state.counters.launches) == (1, 0)
        with ov.SequenceBatcher(model, 2) as batcher:
            sequences = [batcher.open() for _ in range(2)]
            for step in steps:
                state.counters.reset()
                with batcher.together():
                    futures = [sequence.submit(step) for sequence in sequences]
                together = [future.result()[0] for future in futures]
        assert (state.counters.graph_launches, state.counters.launches) == (1, 0)
        for rows in together:
            np.testing.assert_allclose(rows, logits, rtol=0, atol=1e-4 * abs(logits).max())
        found.append(logits)
    assert 0 < abs(found[1] - found[0]).max() < error * abs(found[0]).max()


def test_options_are_exported(emulated: str) -> None:
    core = ov.Core()
    blob = core.compile_model(with_options(ov, {CACHE: "f16"}), emulated).export_model()
    again = core.import_model(blob, emulated)
    assert {info.type.get_type_name() for info in again._compilation.initial.infos.values()} == {"f16"}


@pytest.mark.parametrize("kind", ["u4", "i4"])
def test_types_of_caches_that_are_not_stored(kind: str) -> None:
    """4-bit caches are announced as what they are, whether the program or the model asks for them."""
    match = f"KV_CACHE_PRECISION {kind}: ovgpu stores keys and values in f32"
    with pytest.warns(RuntimeWarning, match=match) as warned:
        found = ov.Core().compile_model(with_options(ov, {}), "CPU", {CACHE: kind})
    assert warned[0].filename == __file__
    assert found.get_property(CACHE) == ov.Type.f32
    with pytest.warns(RuntimeWarning, match=match):
        found = ov.Core().compile_model(with_options(ov, {CACHE: kind}), "CPU")
    assert found.get_property(CACHE) == ov.Type.f32


@pytest.mark.parametrize("key", [CACHE, "KEY_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
def test_wrong_options(key: str) -> None:
    with pytest.raises(RuntimeError, match=f"Wrong value nonsense for property key {key}"):
        ov.Core().compile_model(with_options(ov, {key: "nonsense"}), "CPU")
    with_unknown = with_options(ov, {"SOMETHING": "nonsense"})
    ov.Core().compile_model(with_unknown, "CPU")
