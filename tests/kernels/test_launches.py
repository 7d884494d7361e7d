"""How many kernels an inference launches on the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.emulator import cupy_emu
from tests.models.drive import Decoder
from tests.models.transformer import Sizes, bert, gpt2

BERT, GPT2 = Sizes(0, 24, 2, 48, 61, 20), Sizes(0, 24, 2, 48, 61, 40)


def compiled(ir: tuple[bytes, bytes], device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*ir), device)


def kernels(run: Callable[[], Any]) -> int:
    """Of one run, in a graph or one by one."""
    cupy_emu.counters.reset()
    run()
    return cupy_emu.counters.graph_kernels + cupy_emu.counters.launches


@cache
def of_bert(layers: int, device: str) -> int:
    request = compiled(bert(1, replace(BERT, layers=layers)).ir, device).create_infer_request()
    random = np.random.RandomState(2)
    inputs = [random.randint(0, BERT.vocabulary, (2, 9)), np.ones((2, 9), np.int64), np.zeros((2, 9), np.int64)]
    return kernels(lambda: request.infer(inputs))


@cache
def of_gpt2(layers: int, device: str) -> int:
    """Of a step for one token."""
    decoder = Decoder(compiled(gpt2(1, replace(GPT2, layers=layers)).ir, device))
    prompt = np.arange(6)[None]
    decoder.start(prompt)
    return kernels(lambda: decoder.step(prompt[:, :1]))


@pytest.mark.parametrize(("count", "most"), [(of_bert, 15), (of_gpt2, 15)])
def test_launches_per_layer(count: Callable[[int, str], int], most: int, emulated: str) -> None:
    one, three = count(1, emulated), count(3, emulated)
    assert 10 <= (three - one) / 2 <= most


@pytest.mark.parametrize(("count", "most"), [(of_bert, 19), (of_gpt2, 19)])
def test_launches_beside_the_layers(count: Callable[[int, str], int], most: int, emulated: str) -> None:
    """Embeddings, attention masks, and the head."""
    one, three = count(1, emulated), count(3, emulated)
    assert 10 <= one - (three - one) / 2 <= most
