"""Numbers of kernels that an inference launches on the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.emulator import cupy_emu
from tests.harness.models.drive import DATA, Decoder
from tests.harness.models.transformer import Sizes, Transformer, bert, gpt2, llama

BERT, GPT2, LLAMA = Sizes(0, 24, 2, 48, 61, 20), Sizes(0, 24, 2, 48, 61, 40), Sizes(0, 32, 4, 48, 61, 0, 2)


def compiled(ir: tuple[bytes, bytes], device: str, precision: str = "f32") -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*ir), device, {"INFERENCE_PRECISION_HINT": precision})


def kernels(run: Callable[[], Any]) -> int:
    """Return the number of kernels of one run, in a graph or one by one."""
    cupy_emu.counters.reset()
    run()
    return cupy_emu.counters.graph_kernels + cupy_emu.counters.launches


@cache
def of_bert(layers: int, device: str) -> int:
    request = compiled(bert(1, replace(BERT, layers=layers)).ir, device).create_infer_request()
    random = np.random.RandomState(2)
    inputs = [random.randint(0, BERT.vocabulary, (2, 9)), np.ones((2, 9), np.int64), np.zeros((2, 9), np.int64)]
    return kernels(lambda: request.infer(inputs))


def of_decoder(model: Transformer, device: str, precision: str = "f32") -> int:
    """Return the number of kernels of the second step for one token, which is like all later ones."""
    decoder = Decoder(compiled(model.ir, device, precision))
    prompt = np.arange(6)[None]
    decoder.step(decoder.start(prompt))
    return kernels(lambda: decoder.step(prompt[:, :1]))


@cache
def of_gpt2(layers: int, device: str) -> int:
    return of_decoder(gpt2(1, replace(GPT2, layers=layers)), device)


@cache
def of_gpt2_in_f16(layers: int, device: str) -> int:
    """Return the number of kernels of a step in f16, where a layer has one kernel fewer, for its Gelu."""
    return of_decoder(gpt2(1, replace(GPT2, layers=layers)), device, "f16")


@cache
def of_llama(layers: int, device: str) -> int:
    return of_decoder(llama(1, replace(LLAMA, layers=layers)), device)


@cache
def of_llama_in_f16(layers: int, device: str) -> int:
    """Heads have 64 elements, as in Llama-3.2-1B."""
    return of_decoder(llama(1, replace(LLAMA, layers=layers, width=64 * LLAMA.heads)), device, "f16")


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("count", "most"), [(of_bert, 8), (of_gpt2, 10), (of_gpt2_in_f16, 9), (of_llama, 9), (of_llama_in_f16, 5)]
)
def test_launches_per_layer(count: Callable[[int, str], int], most: int, emulated: str) -> None:
    one, three = count(1, emulated), count(3, emulated)
    assert 5 <= (three - one) / 2 <= most


@pytest.mark.parametrize(("count", "most"), [(of_bert, 18), (of_gpt2, 6), (of_llama, 10)])
def test_launches_beside_the_layers(count: Callable[[int, str], int], most: int, emulated: str) -> None:
    """The other kernels are embeddings, attention masks unless the host computes them, and the head."""
    one, three = count(1, emulated), count(3, emulated)
    assert 5 <= one - (three - one) / 2 <= most


@pytest.mark.parametrize(("name", "most"), [("llama", 9), ("mistral", 9), ("qwen3", 13)])
def test_a_decoders_step(name: str, most: int, emulated: str) -> None:
    """A step is one graph with at most this many kernels per layer; it moves little but weights and caches."""
    decoder = Decoder(ov.Core().compile_model(DATA / name / "model.xml", emulated))
    token = decoder.start(np.arange(6)[None])
    for _ in range(2):
        token = decoder.step(token)
    plan = decoder.request.plan()
    assert plan.launches == 1
    steps = [step for step in plan.steps if step.calls]
    begin = next(i for i, step in enumerate(steps) if ".layers.1." in step.layer)
    end = next(i for i, step in enumerate(steps) if "model.norm" in step.layer)
    assert sum(step.calls or 0 for step in steps[begin:end]) <= most
    weights = sum(
        x.nbytes or 0
        for step in steps
        if step.op != "Gather"
        for x in step.inputs
        if x is not None and x.location == "constant"
    )
    caches = [decoder.request._session.variables.value(name).array for name in decoder.request._session.variables.all]
    assert plan.bytes_moved <= 1.1 * (weights + sum(c.nbytes + c[:, :, :1].nbytes for c in caches))


def test_vit(emulated: str) -> None:
    """The kernels are patches and the first norm, two layers of eight kernels with fused biases, and the head."""
    request = ov.Core().compile_model(DATA / "vit" / "model.xml", emulated).create_infer_request()
    request.infer([np.zeros((2, 3, 32, 32), np.float32)])
    kinds = [step.op for step in request.plan().steps if step.calls]
    assert kinds.count("MatMul") == 9 and "Add" not in kinds and request.plan().kernels <= 21
