"""Decoders split into a device part, whose shapes are fixed while caches grow, and a host part with masks."""

from __future__ import annotations

from collections import Counter

import pytest

import ovgpu as ov
from ovgpu.passes import Target, simplify
from ovgpu.passes.split_decode import split_decode
from tests.harness.models.drive import DATA


@pytest.mark.parametrize(("name", "masks"), [("gpt2", 1), ("llama", 1), ("mistral", 1), ("gemma2", 2), ("qwen3", 1)])
def test_exported_decoders(name: str, masks: int) -> None:
    """Each layer has two caches; one mask, or two with sliding windows, serves all layers."""
    model = simplify(ov.Core().read_model(DATA / name / "model.xml"), Target("CUDA"))
    before = Counter(node.op.name for node in model.ops)
    parts = split_decode(model)
    assert parts is not None and before == Counter(node.op.name for node in model.ops)
    device, host = (Counter(node.op.name for node in part.ops) for part in (parts.device, parts.host))
    layers = before["ScaledDotProductAttention"]
    assert device["CachedAttention"] * 2 == device["CacheWrite"] == len(parts.caches) == before["Assign"] == 2 * layers
    assert not {"ReadValue", "Assign", "Reorder"} & set(device)
    assert len(parts.feeds) == masks and all(feed.grows for feed in parts.feeds)
    assert host["Assign"] == 0 and not {"LessEqual", "Select"} & set(device)


def test_models_without_caches() -> None:
    for name in ("bert", "lstm_state"):
        assert split_decode(simplify(ov.Core().read_model(DATA / name / "model.xml"), Target("CUDA"))) is None
