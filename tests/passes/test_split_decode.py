"""Decoders split into a device part, whose shapes are fixed while caches grow, and a host part with masks."""

from __future__ import annotations

from collections import Counter

import pytest

import ovgpu as ov
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from ovgpu.passes import Target, simplify
from ovgpu.passes.split_decode import split_decode
from ovgpu.symbolic import Table
from tests.harness.ir import Net
from tests.harness.layers import transpose
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


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_caches_in_pages(name: str) -> None:
    """All pools have the same pages, and masks a column for each token that a row of the table has room for."""
    model = simplify(ov.Core().read_model(DATA / name / "model.xml"), Target("CUDA"))
    parts = split_decode(model, paged=True)
    assert parts is not None
    specs = [spec.shape or () for spec in parts.specs(Table())]
    count = len(parts.caches)
    table, pools, masks = specs[-count - 1], specs[-count:], specs[-count - 1 - len(parts.feeds) : -count - 1]
    assert len({pool[0] for pool in pools}) == 1 and {pool[2] for pool in pools} == {PAGE_TOKENS}
    assert {mask[-1] for mask in masks} == {(table[1] - 2) * PAGE_TOKENS}


def cached(order: list[int]) -> ov.Model:
    """Return attention to caches [rows, tokens, heads, size] that are transposed to this order of axes."""
    net = Net("cached")
    x = net.parameter("f32", (2, -1, 3, 4), "x")
    whole = []
    for name in ("keys", "values"):
        past = net.read_value(name, "f32", (2, -1, 3, 4))
        whole.append(net.layer("Concat", "opset1", [past, x], {"axis": 1}))
        net.assign(name, whole[-1])
    q, *caches = (transpose(net, tensor, order) for tensor in (x, *whole))
    net.result(net.layer("ScaledDotProductAttention", "opset13", [q, *caches], {"causal": False}, names=["y"]))
    return ov.Core().read_model(*net.build())


def test_pages_need_the_axis_of_rows_in_front() -> None:
    """The pages of a pool lie where the rows of a cache did, also in attention."""
    for order, splits in (([0, 2, 1, 3], True), ([2, 0, 1, 3], False)):
        model = simplify(cached(order), Target("CUDA"))
        assert split_decode(model) is not None
        assert (split_decode(model, paged=True) is not None) == splits


def test_models_without_caches() -> None:
    for name in ("bert", "lstm_state"):
        assert split_decode(simplify(ov.Core().read_model(DATA / name / "model.xml"), Target("CUDA"))) is None
