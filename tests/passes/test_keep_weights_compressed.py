"""Weights that stay compressed: fused layers, exceptions, and the memory and launches of a model."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.ops.fused.compressed import CompressedGather, CompressedMatMul
from ovgpu.passes import Target, prepare
from tests.emulator import cupy_emu, memory
from tests.harness import Net, judge
from tests.harness.ir import Port, feed, take

RNG = np.random.default_rng(5)
N, K = 48, 64
SCALE, ZERO = RNG.uniform(0.01, 0.1, (N, 1)), RNG.integers(3, 12, (N, 1))
CODES = RNG.integers(0, 16, (N, K))
X = RNG.uniform(-1, 1, (2, K)).astype("f4")


def convert(net: Net, port: Port, kind: str = "f16") -> Port:
    found: Port = net.layer("Convert", "opset1", [port], {"destination_type": kind}, [kind])
    return found


def apply(net: Net, op: str, a: Port, b: Port) -> Port:
    found: Port = net.layer(op, "opset1", [a, b], {"auto_broadcast": "numpy"})
    return found


def reshape(net: Net, port: Port, *shape: int) -> Port:
    found: Port = net.layer("Reshape", "opset1", [port, net.const(np.array(shape))], {"special_zero": False})
    return found


def matrix(net: Net, kind: str = "u4", codes: Any = CODES, scale: Any = SCALE, zero: Any = ZERO) -> Port:
    """Add a compressed matrix, as nncf writes it."""
    port = convert(net, net.const(codes, kind))
    if zero is not None:
        port = apply(net, "Subtract", port, convert(net, net.const(zero, kind)))
    return convert(net, apply(net, "Multiply", port, net.const(scale, "f16")), "f32")


def product(net: Net, x: Port, weights: Port, **attrs: bool) -> Port:
    found: Port = net.layer("MatMul", "opset1", [x, weights], {"transpose_b": True, **attrs})
    return found


def rows(net: Net, weights: Port, indices: Port) -> Port:
    found: Port = net.layer("Gather", "opset8", [weights, indices, net.const(np.array(0))], {"batch_dims": 0}, ["f32"])
    return found


def linear(weights: Callable[[Net], Port], shape: tuple[int, ...] = (-1, K), **attrs: bool) -> Net:
    net = Net()
    net.result(product(net, net.parameter("f32", shape), weights(net), **attrs))
    return net


def language_model() -> Net:
    """Build an embedding that is shared with the head, and a layer in between."""
    net = Net()
    table, square = matrix(net), matrix(net, codes=RNG.integers(0, 16, (K, K)), scale=np.full((K, 1), 0.02), zero=None)
    x = rows(net, table, net.parameter("i64", (-1, -1)))
    net.result(product(net, product(net, x, square), table))
    return net


def ops(net: Net, device: bool = False) -> list[str]:
    model = prepare(ov.Core().read_model(*net.build()), Target("CUDA" if device else ""))
    return [
        type(node.op).__name__ for node in all_nodes(model) if node.op.name not in ("Parameter", "Constant", "Result")
    ]


def test_all_layers_become_one() -> None:
    net = language_model()
    model = ov.Core().read_model(*net.build())
    before = [node.op.name for node in model.ops]
    assert (before.count("Convert"), before.count("Subtract"), before.count("Multiply")) == (5, 1, 2)
    assert ops(net) == ["CompressedGather", "CompressedMatMul", "CompressedMatMul"]
    assert [node.op.name for node in model.ops] == before


def test_constants_are_shared(device: str) -> None:
    """The embedding and the head share codes and scales, and no other constants exist."""
    compiled = compile(language_model(), device)
    sizes = [array.nbytes for _, array in compiled._compilation.constants.values()]
    assert sorted(sizes) == sorted([N * K // 2, N * 2, N, K * K // 2, K * 2])


def compile(net: Net, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device)


# ---- patterns


def grouped(net: Net) -> Port:
    port = matrix(net, codes=CODES.reshape(N, 4, -1), scale=RNG.uniform(0.01, 0.1, (N, 4, 1)), zero=ZERO[..., None])
    return reshape(net, port, N, K)


def swapped(net: Net) -> Port:
    codes = convert(net, net.const(CODES, "u8"), "f32")
    return apply(net, "Multiply", net.const(SCALE, "f32"), apply(net, "Subtract", codes, net.const(ZERO, "f32")))


def zero_alone(net: Net) -> Port:
    return apply(net, "Subtract", convert(net, net.const(CODES, "u8"), "f32"), net.const(np.float32(7)))


def microscaled(net: Net) -> Port:
    scale = convert(net, net.const(2.0 ** RNG.integers(-4, 3, (N, 2, 1)), "f8e8m0"))
    port = apply(net, "Multiply", convert(net, net.const(RNG.uniform(-6, 6, (N, 2, K // 2)), "f4e2m1")), scale)
    return convert(net, reshape(net, port, N, K), "f32")


def scaled_scales(net: Net) -> Port:
    scale = convert(net, net.const(RNG.uniform(1, 9, (N, 2, 1)), "f8e4m3"), "f32")
    scale = convert(net, apply(net, "Multiply", scale, net.const(np.full((1, 1, 1), 0.01, "f4"))))
    port = apply(net, "Multiply", convert(net, net.const(RNG.uniform(-6, 6, (N, 2, K // 2)), "f4e2m1")), scale)
    return convert(net, reshape(net, port, N, K), "f32")


def codebook(net: Net) -> Port:
    book = convert(net, net.const(np.linspace(-3, 4, 16), "f8e4m3"))
    numbers = convert(net, net.const(CODES, "u4"), "u8")
    codes = net.layer("Gather", "opset8", [book, numbers, net.const(np.array(0))], {"batch_dims": 0}, ["f16"])
    return convert(net, apply(net, "Multiply", codes, net.const(SCALE, "f16")), "f32")


def codebook_of_bytes(net: Net) -> Port:
    book, numbers = net.const(np.linspace(-3, 4, 200), "f16"), net.const(RNG.integers(0, 200, (N, K)), "u8")
    codes = net.layer("Gather", "opset8", [book, numbers, net.const(np.array(0))], {"batch_dims": 0}, ["f16"])
    return convert(net, apply(net, "Multiply", codes, net.const(SCALE, "f16")), "f32")


@pytest.mark.parametrize(
    "weights",
    [matrix, grouped, swapped, zero_alone, microscaled, scaled_scales, codebook, codebook_of_bytes],
    ids=lambda f: f.__name__,
)
def test_patterns(weights: Callable[[Net], Port], device: str) -> None:
    net = linear(weights)
    assert ops(net) == ["CompressedMatMul"]
    core = judge.core()
    reference = core.compile_model(core.read_model(*net.build()), "CPU", judge.CONFIG)
    np.testing.assert_allclose(compile(net, device)([X])[0], reference([X])[0], rtol=1e-5, atol=1e-5)


def test_bodies(device: str) -> None:
    net, body = Net(), Net()
    x, h = body.parameter("f32", (1, K)), body.parameter("f32", (1, N))
    out = body.result(apply(body, "Add", product(body, x, matrix(body)), h))
    outer, start = net.parameter("f32", (5, K)), net.parameter("f32", (1, N))
    net.result(net.tensor_iterator(body, [feed(outer, x, axis=0), feed(start, h)], [take(out)], [(out, h)]))
    assert "CompressedMatMul" in ops(net) and "Convert" not in ops(net)
    inputs = [RNG.uniform(-1, 1, (5, K)).astype("f4"), np.zeros((1, N), "f4")]
    weights = (CODES - ZERO) * SCALE.astype("f2").astype("f8")
    np.testing.assert_allclose(compile(net, device)(inputs)[0], inputs[0].sum(0, keepdims=True) @ weights.T, 1e-4, 1e-4)


EXPERTS = 3
OF_EXPERTS = RNG.integers(0, 16, (EXPERTS, N, 4, K // 4)), RNG.uniform(0.01, 0.1, (EXPERTS, N, 4, 1))


def experts(net: Net) -> Port:
    """Add the weights of a mixture of experts, as nncf writes them."""
    return reshape(net, matrix(net, "u4", *OF_EXPERTS, zero=None), EXPERTS, N, K)


def test_terms_shared_by_experts_are_repeated() -> None:
    def weights(net: Net) -> Port:
        codes = OF_EXPERTS[0].reshape(EXPERTS, N, K)
        return matrix(net, "u4", codes, SCALE[None], ZERO[None])

    assert ops(linear(weights, (-1, -1, K))) == ["CompressedMatMul"]


@pytest.mark.parametrize("shape", [(EXPERTS, -1, K), (-1, -1, K), (-1, K)])
def test_experts(shape: tuple[int, ...], device: str) -> None:
    """Tokens are separate for every expert or shared by all, which may be unknown before."""
    net = linear(experts, shape)
    assert ops(net) == ["CompressedMatMul"]
    compiled = compile(net, device)
    assert sum(array.nbytes for _, array in compiled._compilation.constants.values()) == EXPERTS * N * (K // 2 + 8)
    codes, scale = OF_EXPERTS
    weights = (codes * scale.astype("f2").astype("f8")).reshape(EXPERTS, N, K)
    for own in {EXPERTS, 1} if len(shape) > 2 and shape[0] < 0 else {EXPERTS}:
        x = RNG.uniform(-1, 1, (5, K) if len(shape) == 2 else (own, 5, K)).astype("f4")
        np.testing.assert_allclose(compiled([x])[0], x @ weights.swapaxes(1, 2), rtol=1e-4, atol=1e-4)


# ---- not fused


def repeated(net: Net) -> Port:
    """Add weights with the same scales for every group."""
    codes = CODES.reshape(N, 4, -1)
    return reshape(net, matrix(net, codes=codes, scale=RNG.uniform(0.01, 0.1, (N, 1, K // 4)), zero=None), N, K)


def small(net: Net) -> Port:
    return matrix(net, codes=CODES[:31], scale=SCALE[:31], zero=None)


def computed(net: Net) -> Port:
    return apply(net, "Multiply", convert(net, net.const(CODES, "u8"), "f32"), net.parameter("f32", (N, 1)))


@pytest.mark.parametrize("weights", [repeated, small, computed], ids=lambda f: f.__name__)
def test_left_alone(weights: Callable[[Net], Port]) -> None:
    assert "CompressedMatMul" not in ops(linear(weights))


def test_other_products_are_left_alone() -> None:
    assert "CompressedMatMul" not in ops(linear(experts, (2, 1, -1, K)))


def test_products_are_transposed() -> None:
    """Operands are swapped if the weights' rank shows which axes of the result to swap."""
    assert ops(linear(matrix, (K, -1), transpose_a=True)) == ["SwapAxes", "CompressedMatMul"]
    assert ops(on_the_left(matrix, (-1, K))) == ["CompressedMatMul", "SwapAxes"]
    assert ops(on_the_left(matrix, None)) == ["CompressedMatMul", "SwapAxes"]
    assert ops(on_the_left(matrix, (-1, N), transpose_a=True)) == ["CompressedMatMul", "SwapAxes"]
    assert ops(on_the_left(experts, (-1, K))) == ["CompressedMatMul", "SwapAxes"]
    assert ops(on_the_left(experts, (K,))) == ["CompressedMatMul"]
    assert ops(on_the_left(experts, None)) == ["MatMul"]


def on_the_left(weights: Callable[[Net], Port], shape: tuple[int, ...] | None, **attrs: bool) -> Net:
    net = Net()
    net.result(product(net, weights(net), net.parameter("f32", shape), **attrs))
    return net


def halves(net: Net) -> Port:
    return convert(net, net.const(RNG.uniform(-1, 1, (N, K)), "f16"), "f32")


def test_16_bits_stay_so_on_a_device() -> None:
    """NumPy multiplies in f32, and converts only the gathered rows."""
    assert ops(linear(halves)) == ["MatMul"] and ops(linear(halves), device=True) == ["CompressedMatMul"]
    net = Net()
    net.result(rows(net, halves(net), net.parameter("i64", (-1,))))
    assert ops(net) == ops(net, device=True) == ["CompressedGather"]


def test_filters_of_16_bits_become_f32() -> None:
    """Kernels of convolutions take weights of their data's type."""
    net = Net()
    attrs = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    filters = convert(net, net.const(RNG.uniform(-1, 1, (64, 64, 3, 3)), "f16"), "f32")
    net.result(net.layer("Convolution", "opset1", [net.parameter("f32", (1, 64, 9, 9)), filters], attrs))
    assert ops(net) == ops(net, device=True) == ["Convolution"]


# ---- memory and launches

BIG = RNG.integers(0, 16, (4096, 1024)).astype(np.uint8)


def large(net: Net) -> Port:
    return matrix(net, codes=BIG, scale=np.full((4096, 1), 0.01), zero=np.full((4096, 1), 8))


def test_numpy_decompresses_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker decompresses 256 KiB at a time, of 16 MiB in f32."""
    monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), "TILE", 1 << 16)
    ir = linear(large, (1, 1024)).build()
    core = ov.Core()
    model = core.read_model(*ir)
    x = np.ones((1, 1024), np.float32)
    tracemalloc.start()
    try:
        request = core.compile_model(model, "CPU").create_infer_request()
        found = request.infer([x])[0]
        assert tracemalloc.get_traced_memory()[1] < 1.5 * 2**20
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found[0], (BIG.astype("f8") - 8).sum(1) * np.float16(0.01), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [1, 9, 70])
def test_workers_share_tiles(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), "TILE", 2 * K if count < 70 else K // 2)
    x = RNG.uniform(-1, 1, (count, K)).astype("f4")
    found = compile(linear(matrix), "CPU")([x])[0]
    weights = (CODES - ZERO) * SCALE.astype("f2").astype("f8")
    np.testing.assert_allclose(found, x @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.emulator
def test_a_device_holds_codes_and_a_tile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), "DEVICE_TILE", 1 << 16)
    gc.collect()
    before = memory.used_bytes()
    compiled = compile(linear(large, (-1, 1024)), emulated)
    stored = BIG.size // 2 + 4096 * 3
    assert stored <= memory.used_bytes() - before < stored + 1024
    request = compiled.create_infer_request()
    request.infer([np.ones((3, 1024), np.float32)])
    x, tile = 16384, 4 * (1 << 16)  # minimum for a tensor of dynamic size
    assert tile < request.plan().arena <= tile + 2 * x


@pytest.mark.parametrize(("count", "launches"), [(1, 1), (3, 1), (8, 1), (9, 2 * 2)])
def test_launches(count: int, launches: int, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows need one kernel; many need a kernel and a product per tile."""
    monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), "DEVICE_TILE", N * K // 2)
    request = compile(linear(matrix), emulated).create_infer_request()
    for _ in range(3):
        cupy_emu.counters.reset()
        request.infer([np.ones((count, K), np.float32)])
    assert cupy_emu.counters.graph_kernels == launches


def test_types_have_the_attributes_of_weights() -> None:
    model: Model = prepare(ov.Core().read_model(*language_model().build()))
    found = [node.op for node in model.ops if isinstance(node.op, (CompressedGather, CompressedMatMul))]
    assert [(op.weights.rows, op.weights.columns, op.name) for op in found] == [
        (N, K, "Gather"),
        (K, K, "MatMul"),
        (N, K, "MatMul"),
    ]


# ---- convolutions

FILTERS = RNG.integers(0, 255, (1024, 128, 3, 3)).astype(np.uint8)


def convolution(net: Net, codes: Any = FILTERS, kind: str = "f32") -> Net:
    """Build a convolution with compressed filters, as nncf writes it."""
    terms = len(codes), 1, 1, 1
    weights = matrix(net, "u8", codes, np.full(terms, 0.01), np.full(terms, 100))
    attrs = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    x, weights = net.parameter(kind, (-1, codes.shape[1], 3, 3)), convert(net, weights, kind)
    net.result(net.layer("Convolution", "opset1", [x, weights], attrs))
    return net


def test_numpy_decompresses_a_tile_of_filters() -> None:
    """Filters are decompressed in tiles of 4 MiB; all of them have 4.5 MiB in f32."""
    assert ops(convolution(Net())) == ["CompressedConvolution"]
    assert ops(convolution(Net(), kind="f16")) == ["Convert", "CompressedConvolution", "Convert"]
    core = ov.Core()
    model = core.read_model(*convolution(Net()).build())
    x = np.ones((1, 128, 3, 3), np.float32)
    tracemalloc.start()
    try:
        request = core.compile_model(model, "CPU").create_infer_request()
        found = request.infer([x])[0]
        assert tracemalloc.get_traced_memory()[1] < 4.2 * 2**20
    finally:
        tracemalloc.stop()
    expected = (FILTERS.astype("f8") - 100).sum((1, 2, 3)) * np.float16(0.01)
    np.testing.assert_allclose(found[0, :, 0, 0], expected, rtol=1e-4, atol=1e-2)


@pytest.mark.emulator
def test_a_device_holds_filters_and_a_tile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel decompresses every tile before the kernels of its convolution."""
    monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), "DEVICE_TILE", 9 * 128 * 32)
    codes = FILTERS[:100]
    gc.collect()
    before = memory.used_bytes()
    compiled = compile(convolution(Net(), codes), emulated)
    stored = codes.size + 100 * 3
    assert stored <= memory.used_bytes() - before < stored + 1024
    request = compiled.create_infer_request()
    for _ in range(3):
        cupy_emu.counters.reset()
        found = request.infer([np.ones((1, 128, 3, 3), np.float32)])[0]
    expected = (codes.astype("f8") - 100).sum((1, 2, 3)) * np.float16(0.01)
    np.testing.assert_allclose(found[0, :, 0, 0], expected, rtol=1e-4, atol=1e-2)
    x, tile = 16384, 4 * 9 * 128 * 32  # minimum for a tensor of dynamic size
    assert tile < request.plan().arena <= tile + 2 * x + 64
    assert cupy_emu.counters.graph_kernels == 2 * 4
