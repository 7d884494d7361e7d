"""LoRA adapters: tokens as recorded from openvino_genai, sets of them, files, and wrong uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai.adapted_decoders import MOST_SETS
from ovgpu.genai.safetensors import read_safetensors
from tests.genai import adapter_cases
from tests.genai.close import assert_close
from tests.genai.generation_cases import PROMPT, make_folder
from tests.genai.record_wheel import PATH

pytest.importorskip("tokenizers")
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def test_generations(tmp_path: Path, emulated: str) -> None:
    """Each set of adapters, and on a card those of the pipeline and one other."""
    folder, expected = make_folder("llama", tmp_path), json.loads(PATH.read_text())["adapters"]
    for device, sets, wanted in (
        ("CPU", adapter_cases.SETS, expected),
        (emulated, [None, [("b", 0.7)]], expected[:4:3]),
    ):

        def make(device: str = device, **properties: Any) -> Any:
            return ov_genai.LLMPipeline(folder, device, **properties, **EXACT)

        for found, right in zip(adapter_cases.outcomes(ov_genai, make, tmp_path, sets), wanted, strict=True):
            assert found[0] == right[0]
            assert_close(found[1], right[1])


def test_sets(tmp_path: Path) -> None:
    """A pipeline keeps the models of the last sets, beside its own. Only the matrices of adapters are new arrays."""
    adapter = ov_genai.Adapter(adapter_cases.write_adapter(tmp_path, "a"))
    pipeline = ov_genai.LLMPipeline(make_folder("llama", tmp_path), "CPU", **EXACT)
    assert pipeline.get_generation_config().adapters is None
    for alpha in range(1, 3 + MOST_SETS):
        pipeline.generate("a", max_new_tokens=1, adapters=ov_genai.AdapterConfig(adapter, alpha))
    assert [pairs[0][1] for pairs in pipeline._decoders._others] == [3, 4, 5, 6]
    pipeline.generate("a", max_new_tokens=1, adapters=ov_genai.AdapterConfig(adapter, 3))
    assert [pairs[0][1] for pairs in pipeline._decoders._others] == [4, 5, 6, 3]
    decoders = pipeline._decoder, *pipeline._decoders._others.values()
    chosen = [decoder.chooser(penalties=False).compiled._compilation.constants.values() for decoder in decoders]
    plain, *adapted = ({id(array): array.nbytes for _, array in constants} for constants in chosen)
    matrices = sum(a.nbytes + b.nbytes for a, b in adapter._layers.values())
    for sizes in adapted:
        assert matrices <= sum(size for array, size in sizes.items() if array not in plain) < matrices + 16
    text = pipeline.generate(PROMPT, max_new_tokens=4, adapters=ov_genai.AdapterConfig())
    assert text == pipeline.generate(PROMPT, max_new_tokens=4) and len(pipeline._decoders._others) == MOST_SETS


def test_configurations(tmp_path: Path) -> None:
    a, b = (ov_genai.Adapter(adapter_cases.write_adapter(tmp_path, name)) for name in "ab")
    config = ov_genai.AdapterConfig(a)
    assert config and not ov_genai.AdapterConfig() and config.get_alpha(a) == 1
    assert config.add(b, 0.5).set_alpha(a, 2).get_adapters_and_alphas() == [(a, 2.0), (b, 0.5)]
    generation = ov_genai.GenerationConfig(adapters=config)
    assert config.remove(a).get_adapters() == [b]
    assert generation.adapters is not None and generation.adapters.get_adapters() == [a, b]  # a copy
    config.set_adapters_and_alphas([(a, 3)])
    assert config.get_adapters_and_alphas() == [(a, 3.0)]
    mode = ov_genai.AdapterConfig.Mode.MODE_STATIC
    assert ov_genai.AdapterConfig([a, b], mode).get_alpha(b) == ov_genai.AdapterConfig(b, mode=mode).get_alpha(b) == 1
    contents = np.frombuffer((tmp_path / "a.safetensors").read_bytes(), np.uint8)
    assert [*ov_genai.Adapter(ovgpu.Tensor(contents.copy()))._layers] == [*a._layers]


def test_types(tmp_path: Path) -> None:
    """bf16, numbers at odd places, and tensors of other types, which are left out."""
    values = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    entries = {
        "__metadata__": {"format": "pt"},
        "n": {"dtype": "I64", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [1, 5]},
    }
    header = json.dumps(entries).encode()
    found = read_safetensors(len(header).to_bytes(8, "little") + header + b"." + values.tobytes(), "x")
    assert [*found] == ["x"] and found["x"].tolist() == [[1.5, -2]]


def test_wrong_uses(tmp_path: Path) -> None:
    folder, one = make_folder("llama", tmp_path), np.ones((2, 2), np.float32)
    a = ov_genai.Adapter(adapter_cases.write_adapter(tmp_path, "a"))
    b = ov_genai.Adapter(adapter_cases.write_adapter(tmp_path, "b"))
    config: Any = ov_genai.AdapterConfig

    def adapter(tensors: dict[str, Any]) -> ov_genai.Adapter:
        adapter_cases.write_safetensors(tmp_path / "x.safetensors", tensors)
        return ov_genai.Adapter(tmp_path / "x.safetensors")

    def pipeline(*adapters: ov_genai.Adapter) -> ov_genai.LLMPipeline:
        return ov_genai.LLMPipeline(folder, "CPU", adapters=config(adapters))

    def file(contents: bytes) -> ov_genai.Adapter:
        (tmp_path / "x.safetensors").write_bytes(contents)
        return ov_genai.Adapter(tmp_path / "x.safetensors")

    def entry(**changed: Any) -> ov_genai.Adapter:
        header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changed}}).encode()
        return file(len(header).to_bytes(8, "little") + header + b"1234")

    pair = {f"{PREFIX}.lora_A.weight": one, f"{PREFIX}.lora_B.weight": one}
    for wrong, kind, message in (
        (lambda: ov_genai.Adapter(tmp_path / "absent"), ovgpu.Error, "there is no adapter .*absent"),
        (lambda: ov_genai.Adapter(3), TypeError, "read from a path or a tensor, not 3"),
        (lambda: file(b""), ovgpu.Error, "is no safetensors file: its header is not complete"),
        (lambda: file(b"\xff" * 20), ovgpu.Error, "its header is not complete"),
        (lambda: file(b"\2" + b"\0" * 7 + b"[]"), ovgpu.Error, "is no safetensors file: AttributeError"),
        (lambda: file(b"\2" + b"\0" * 7 + b"{{"), ovgpu.Error, "is no safetensors file: JSONDecodeError"),
        (lambda: entry(data_offsets=[0, 8]), ovgpu.Error, "is outside the file"),
        (lambda: entry(data_offsets=[-4, 0]), ovgpu.Error, "is outside the file"),
        (lambda: entry(shape=[2]), ovgpu.Error, "is no safetensors file: ValueError"),
        (lambda: entry(shape="a"), ovgpu.Error, "is no safetensors file: TypeError"),
        (lambda: entry(), ovgpu.Error, "has no tensors named like LAYER.lora_A.weight"),
        (lambda: adapter({f"{PREFIX}.lora_A.weight": one}), ovgpu.Error, "has no pair of matrices"),
        (lambda: adapter({"model.lm_head.weight": one}), ovgpu.Error, "replaces all weights of model.lm_head.weight"),
        (lambda: pipeline(adapter(pair)), ovgpu.Error, "matrices .* for .*q_proj.*, which do not fit it"),
        (lambda: pipeline(adapter({key[5:]: x for key, x in pair.items()})), ovgpu.Error, "changes no layer"),
        (
            lambda: ov_genai.LLMPipeline(folder, "CPU", adapters=a),
            TypeError,
            "adapters must be None or an AdapterConfig",
        ),
        (
            lambda: ov_genai.GenerationConfig(adapters=3),
            ovgpu.Error,
            "adapters must be None or an AdapterConfig, not 3",
        ),
        (lambda: ov_genai.WhisperGenerationConfig(adapters=config(a)), ovgpu.Error, "does not support adapters"),
        (lambda: config(3), TypeError, "an AdapterConfig has an Adapter, or a list of them, not 3"),
        (lambda: config([3]), TypeError, "an AdapterConfig has Adapters, not 3"),
        (lambda: config(a, mode=1), TypeError, "the mode of an AdapterConfig is an AdapterConfig.Mode, not 1"),
        (lambda: config(a, float("nan")), TypeError, "a finite number, not nan"),
        (lambda: config([a, a]), ovgpu.Error, "the adapter is there already: call set_alpha"),
        (lambda: config(a).get_alpha(b), ovgpu.Error, "the adapter is not there: call add"),
        (lambda: config(a).remove(b), ovgpu.Error, "the adapter is not there: call add"),
        (lambda: config(a).set_alpha(b, 1), ovgpu.Error, "the adapter is not there: call add"),
    ):
        with pytest.raises(kind, match=message):
            wrong()  # type: ignore[no-untyped-call]
