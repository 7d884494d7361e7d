"""Calls that optimum-intel makes, replayed with either library; and optimum-intel itself, if installed."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from tests.harness.models.drive import OPENVINO_F32, decoder_inputs

from .test_samples import same

DATA = Path(__file__).parents[1] / "models" / "data"
STEPS = 8


def load(ov: Any, name: str) -> tuple[Any, Any, list[Any]]:
    """Load a model as optimum-intel does. Returns (core, model, values that it looked at)."""
    core = ov.Core()
    model = core.read_model(DATA / name / "model.xml", DATA / name / "model.bin")
    seen: list[Any] = [model.has_rt_info("nncf"), len(model.get_sinks())]
    for port in (*model.inputs, *model.outputs):
        seen += [
            port.get_any_name(),
            sorted(port.get_names()),
            port.get_element_type().get_type_name(),
            str(port.get_partial_shape()),
            [d.is_dynamic for d in port.get_partial_shape()],
        ]
    return core, model, seen


def compile_decoder(ov: Any, name: str) -> tuple[Any, list[Any]]:
    core, model, seen = load(ov, name)
    config = dict(OPENVINO_F32) if ov is openvino else {"PERFORMANCE_HINT": "LATENCY"}
    assert "PERFORMANCE_HINT" in core.get_property("CPU", "SUPPORTED_PROPERTIES")
    return core.compile_model(model, "CPU", config=config).create_infer_request(), seen


class Generation:
    """Calls of one `generate`: `reset_state` once, then `start_async`, `wait` and `get_tensor` per token."""

    def __init__(self, ov: Any, name: str) -> None:
        self.request, self.seen = compile_decoder(ov, name)
        self.names = {port.get_any_name() for port in self.request.model_inputs}
        self.mask = np.ones((0, 0), np.int64)

    def step(self, tokens: np.ndarray, beam: np.ndarray | None = None) -> np.ndarray:
        if not self.mask.size:
            self.request.reset_state()
            self.mask = np.ones((len(tokens), 0), np.int64)
        elif beam is not None:
            self.mask = self.mask[beam]
        self.mask = np.concatenate([self.mask, np.ones(tokens.shape, np.int64)], axis=1)
        inputs = decoder_inputs(tokens, self.mask, beam)
        self.request.start_async({k: v for k, v in inputs.items() if k in self.names}, share_inputs=True)
        self.request.wait()
        return np.array(self.request.get_tensor("logits").data)

    def restart(self) -> None:
        self.mask = np.ones((0, 0), np.int64)


def greedy(ov: Any, name: str) -> list[Any]:
    generation, found = Generation(ov, name), []
    for prompt in ([[3, 1, 4, 1, 5]], [[9, 2], [6, 5]]):
        tokens = np.array(prompt)
        for _ in range(STEPS):
            logits = generation.step(tokens)
            found += [logits, tokens]
            tokens = logits[:, -1:].argmax(-1)
        generation.restart()
    return [*generation.seen, *found]


def beam_search(ov: Any, name: str, beams: int = 3) -> list[Any]:
    """Run a beam search, whose cache the model reorders by its input beam_idx."""
    generation = Generation(ov, name)
    tokens = np.repeat(np.array([[3, 1, 4, 1]]), beams, axis=0)
    scores = np.array([0.0] + [-1e9] * (beams - 1))
    order = np.arange(beams)
    history = np.zeros((beams, 0), np.int64)
    for _ in range(STEPS):
        logits = generation.step(tokens, order)[:, -1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        total = scores[:, None] + logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        best = np.argsort(-total.reshape(-1), kind="stable")[:beams]
        order, chosen = best // logits.shape[1], best % logits.shape[1]
        scores, tokens = total.reshape(-1)[best], chosen[:, None]
        history = np.concatenate([history[order], tokens], axis=1)
    return [history, scores.astype(np.float32)]


def states(ov: Any, name: str) -> list[Any]:
    """Read names and values of all states, as optimum-intel does for models without a KV cache."""
    generation = Generation(ov, name)
    generation.step(np.array([[3, 1, 4]]))
    found = {state.name: np.array(state.state.data) for state in generation.request.query_state()}
    return [sorted(found), *(found[key] for key in sorted(found))]


def copies(ov: Any, name: str, folder: Path) -> list[Any]:
    """Copy a model, save the copy and read it again. Returns a description of it."""
    core, model, _ = load(ov, name)
    twin = copy.deepcopy(model)
    ov.save_model(twin, folder / f"{ov.__name__}.xml", compress_to_fp16=False)
    again = core.read_model(folder / f"{ov.__name__}.xml")
    return [[port.get_any_name() for port in again.inputs], len(again.get_sinks())]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("protocol", [greedy, beam_search, states], ids=lambda f: f.__name__)
def test_causal_language_model(protocol: Any, name: str) -> None:
    same(protocol(ovgpu, name), protocol(openvino, name))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_saving(name: str, tmp_path: Path) -> None:
    same(copies(ovgpu, name, tmp_path), copies(openvino, name, tmp_path))


def encoder(ov: Any) -> list[Any]:
    """Reshape by port and call the compiled model, as for sequence classification and feature extraction."""
    core, model, found = load(ov, "bert")
    shapes = {}
    for port in model.inputs:
        shapes[port] = port.get_partial_shape()
        shapes[port][0], shapes[port][1] = 2, 7
    model.reshape(shapes)
    assert not model.is_dynamic()
    tokens = np.arange(14).reshape(2, 7)
    inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
    compiled = core.compile_model(model, "CPU", dict(OPENVINO_F32) if ov is openvino else {})
    for options in ({}, {"share_inputs": True, "share_outputs": True}, {"share_inputs": False}):
        result = compiled(inputs, **options)
        found += [np.array(result["last_hidden_state"]), np.array(result[0])]
    model.reshape({0: ov.PartialShape([-1, -1]), "attention_mask": [-1, -1], model.input(2): "[?,?]"})
    compiled = core.compile_model(model, "CPU", dict(OPENVINO_F32) if ov is openvino else {})
    return [*found, compiled({key: value[:1, :5] for key, value in inputs.items()}).to_tuple()[0]]


def test_encoder() -> None:
    same(encoder(ovgpu), encoder(openvino))


def test_tensors() -> None:
    """Tensors can be empty, or hold bits of bfloat16, as stateless decoders need them."""
    for ov in (openvino, ovgpu):
        empty = ov.Tensor(ov.Type.f32, ov.Shape([1, 4, 0, 8]))
        bits = ov.Tensor(np.zeros(6, np.float16), ov.Shape([2, 3]), ov.Type.bf16)
        assert (empty.get_size(), bits.element_type.get_type_name(), list(bits.shape)) == (0, "bf16", [2, 3])


if importlib.util.find_spec("optimum") and importlib.util.find_spec("torch"):

    @pytest.fixture(scope="module")
    def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Export a small random Llama with optimum-intel."""
        import torch
        from optimum.intel import OVModelForCausalLM
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(1)
        source, target = tmp_path_factory.mktemp("torch"), tmp_path_factory.mktemp("ir")
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=99,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                initializer_range=0.2,
            )
        ).save_pretrained(source)
        OVModelForCausalLM.from_pretrained(source, export=True, compile=False).save_pretrained(target)
        return target

    @pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
    def test_optimum_intel(
        tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
    ) -> None:
        """Unmodified optimum-intel generates the same tokens with ovgpu behind `openvino.Core.compile_model`."""
        import torch
        from optimum.intel import OVModelForCausalLM

        original, taken = openvino.Core.compile_model, []

        def compile_model(self: Any, model: Any, device_name: Any = None, config: Any = None, **more: Any) -> Any:
            if device_name != "NVIDIA":
                return original(self, model, device_name, config, **more)
            openvino.serialize(model, tmp_path / "m.xml", tmp_path / "m.bin")
            taken.append(ovgpu.Core().compile_model(tmp_path / "m.xml", "CPU"))
            return taken[-1]

        monkeypatch.setattr(openvino.Core, "compile_model", compile_model)
        inputs = {"input_ids": torch.tensor([[1, 5, 7, 2], [3, 3, 8, 9]]), "max_new_tokens": 12, "do_sample": False}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        tokens = {}
        for device, config in (("CPU", OPENVINO_F32), ("NVIDIA", {})):
            model = OVModelForCausalLM.from_pretrained(tiny_llama, device=device, ov_config=dict(config))
            tokens[device] = model.generate(**inputs, **options).tolist()
        assert taken and tokens["NVIDIA"] == tokens["CPU"]
