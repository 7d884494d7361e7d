"""Large tensors between host and emulated device: results are downloaded when they are read and never change after
that; neither results nor inputs take pinned memory of their size."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import host_memory
from ovgpu.backends.cuda import transfer
from ovgpu.request import downloads
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.emulator import memory
from tests.harness import Net

from .recorded import counted

X = np.arange(-300, 300, dtype=np.float32).reshape(100, 6)
pytestmark = pytest.mark.emulator


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results above 1,000 bytes be large, copy them in chunks of 512 bytes, and pin no more than 10,000 bytes."""
    monkeypatch.setattr(downloads, "LARGE_BYTES", 1000)
    monkeypatch.setattr(transfer, "DOWNLOAD_CHUNK", 512)
    monkeypatch.setattr(transfer, "CHUNK", 1024)
    monkeypatch.setattr(transfer, "POOLED", 10_000)


@pytest.fixture(params=[100, 1000], ids=["large", "very-large"])
def x(request: pytest.FixtureRequest) -> Any:
    """Return an input whose result is large; the second one is also too large for pinned memory."""
    return np.tile(X, (request.param // 100, 1))


def equal(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found, wanted)


@contextmanager
def downloading(nbytes: int) -> Iterator[None]:
    """Check that the block downloads ``nbytes`` bytes."""
    cp.counters.reset()
    yield
    assert cp.counters.d2h_bytes == nbytes


# ---- parts

PARTS = (0, -1, np.int64(3), slice(3, 5), (slice(None), 2), (..., -1), (2, 3), (None, 4), slice(None, None, -7), ...)


def test_parts_of_a_result(x: Any, compiled: Any) -> None:
    """Only the elements asked for are downloaded."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    request.infer([x])
    tensor, whole, found = request.get_output_tensor(), np.abs(x), []
    for index in PARTS:
        with downloading(whole[index].nbytes):
            found.append(tensor.read(index))
        assert isinstance(found[-1], np.ndarray) and found[-1].dtype == np.float32
    for index in ([0, 1], np.array([1]), True, (0, [1])):
        with pytest.raises(TypeError, match="integers and slices"):
            tensor.read(index)
    with pytest.raises(IndexError):
        tensor.read(len(x))
    with downloading(x.nbytes):
        equal(tensor.data, whole)
    with downloading(0):
        equal(tensor.read(-1), whole[-1])
    request.infer([2 * x])
    for part, index in zip(found, PARTS, strict=True):
        equal(part, whole[index])
    equal(tensor.read((1, ...)), 2 * whole[1])


def test_parts_of_small_results(x: Any, compiled: Any) -> None:
    """A part is a copy: a later large result need not be downloaded for those who read one before."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    request.infer([x[:2]])
    part = request.get_output_tensor().read(0)
    with downloading(0):
        request.infer([x])
    equal(part, np.abs(x[0]))
    with downloading(part.nbytes):
        equal(request.get_output_tensor().read(-1), np.abs(x[-1]))


def test_parts_of_a_tensor_on_the_device(x: Any, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    target = ov.Tensor(cp.empty(x.shape, np.float32))
    request.set_output_tensor(target)
    request.infer([x])
    for index in PARTS:
        with downloading(x[index].nbytes):
            equal(target.read(index), np.abs(x)[index])


# ---- results of infer


def test_a_result_is_downloaded_when_it_is_read(x: Any, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    for n in range(5):
        with downloading(0):
            results = request.infer([n * x])
        assert 0 in results and "out" in results and len(results) == 1 and results.names() == ({"out"},)
        with downloading(x.nbytes):
            equal(results[0], np.abs(n * x))
        with downloading(0):
            equal(results["out"], np.abs(n * x))
        assert results[0] is results.to_tuple()[0] is next(iter(results.values()))


def test_results_do_not_change(x: Any, compiled: Any) -> None:
    """An unread result is downloaded before the next inference overwrites it, unless it is no longer referenced."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    results: list[Any] = [request.infer([x])]
    for n in range(2, 6):
        with downloading(x.nbytes):
            results.append(request.infer([n * x]))
    with downloading(0):
        equal(results[0][0], np.abs(x))
    results.pop()
    with downloading(0):
        request.infer([x])
    for n, found in enumerate(results, 1):
        equal(found[0], np.abs(n * x))
    again = [request.results, request.results]
    request.infer([7 * x])
    for found in again:
        equal(found[0], np.abs(x))
    assert not np.shares_memory(again[0][0], again[1][0])


def test_a_result_outlives_its_request(x: Any, compiled: Any) -> None:
    results = compiled(nets.one((-1, 6))).create_infer_request().infer([x])
    gc.collect()
    equal(results[0], np.abs(x))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda results: pickle.loads(pickle.dumps(results))])
def test_copies_of_results_that_were_not_read(way: Any, x: Any, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    copied = way(request.infer([x]))
    request.infer([2 * x])
    equal(copied[0], np.abs(x))


def test_a_result_of_an_asynchronous_inference(x: Any, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    last = request.infer([x])
    for n in range(1, 5):
        request.start_async([(n + 1) * x])
        request.wait()
        equal(last[0], np.abs(n * x))
        last = request.results


@pytest.mark.parametrize("kind", ["f16", "bf16", "i64", "f8e4m3", "boolean"])
def test_types(kind: str, emulated: str) -> None:
    given = (np.arange(6000).reshape(1000, 6) % 2).astype(bool if kind == "boolean" else np.float32)
    core = ov.Core()
    model = core.read_model(*nets.same((-1, 6), kind))
    requests = [core.compile_model(model, device).create_infer_request() for device in ("CPU", emulated)]
    first, second = (request.infer([given])[0] for request in requests)
    assert first.dtype == second.dtype
    equal(first, second)


# ---- tensors


def test_the_tensor_is_downloaded_when_it_is_read(x: Any, compiled: Any) -> None:
    """Once the tensor's memory has been handed out, each inference writes to it."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    for n in range(4):
        with downloading(0):
            request.infer([n * x])
    tensor = request.get_output_tensor()
    with downloading(0):
        assert (tuple(tensor.shape), tensor.byte_size, tensor.element_type) == (x.shape, x.nbytes, ov.Type.f32)
    with downloading(x.nbytes):
        equal(tensor.data, np.abs(3 * x))
    view = tensor.data
    for n in range(4, 8):
        with downloading(x.nbytes):
            request.infer([n * x])
        with downloading(0):
            equal(view, np.abs(n * x))
        assert request.get_output_tensor() is tensor


def test_views_from_before_the_first_inference(compiled: Any) -> None:
    request = compiled(nets.one((100, 6))).create_infer_request()
    view = request.get_output_tensor().data
    equal(view, np.zeros((100, 6)))
    for n in range(1, 5):
        results = request.infer([n * X])
        equal(view, np.abs(n * X))
        equal(results[0], view)


def test_shared_outputs(x: Any, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    with downloading(0):
        request.infer([x], share_outputs=True)
    view = request.infer([x], share_outputs=True)[0]
    for n in range(1, 5):
        results = request.infer([n * x], share_outputs=True)
        equal(view, np.abs(n * x))
        assert np.shares_memory(results[0], view)


def test_pinned_unless_too_large(compiled: Any) -> None:
    """Memory that was handed out is pinned, and the graph writes it; very large memory is not pinned."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    for rows, pinned in ((10, True), (100, True), (1000, False), (100, True)):
        for n in range(1, 4):
            given = n * np.tile(X, (10, 1))[:rows]
            request.infer([given])
            view = request.get_output_tensor().data
            equal(view, np.abs(given))
            assert memory.is_pinned(view.ctypes.data, view.nbytes) == pinned
    _, counters = counted(lambda: request.infer([X]))
    assert (counters.graph_launches, counters.graph_nodes, counters.synchronizations) == (1, 3, 1)


@pytest.mark.parametrize("show", [False, True])
def test_changing_sizes(show: bool, compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    retained: list[Any] = []
    for n, rows in enumerate((3, 100, 3, 3, 1000, 1000, 100, 1000, 5, 100, 100)):
        given = n * np.tile(X, (10, 1))[:rows]
        retained.append((request.infer([given]), np.abs(given)))
        if show:
            equal(request.get_output_tensor().data, np.abs(given))
    for found, wanted in retained:
        equal(found[0], wanted)


def test_the_shape_of_an_unread_tensor_is_changed(compiled: Any) -> None:
    request = compiled(nets.one((-1, 6))).create_infer_request()
    request.infer([X])
    tensor = request.get_output_tensor()
    tensor.shape = (50, 6)
    equal(tensor.data, np.abs(X[:50]))


def test_another_tensor_is_bound(x: Any, compiled: Any) -> None:
    """A caller's tensor has its data after the inference. The request's own tensor keeps its last result."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    request.infer([x])
    own, mine = request.get_output_tensor(), ov.Tensor(ov.Type.f32, x.shape)
    request.set_output_tensor(mine)
    for n in range(2, 5):
        with downloading(x.nbytes):
            request.infer([n * x])
        equal(mine.data, np.abs(n * x))
    equal(own.data, np.abs(x))
    part = ov.Tensor(ov.Tensor(ov.Type.f32, (len(x), 8)), [0, 1], [len(x), 7])
    request.set_output_tensor(part)
    request.infer([5 * x])
    equal(part.data, np.abs(5 * x))


def test_a_tensor_of_another_request_is_bound(x: Any, compiled: Any) -> None:
    model = compiled(nets.one((-1, 6)))
    first, second = model.create_infer_request(), model.create_infer_request()
    first.infer([-x])
    second.set_input_tensor(first.get_output_tensor())
    equal(second.infer()[0], np.abs(x))
    second.set_output_tensor(first.get_output_tensor())
    first.infer([2 * x])
    second.set_input_tensor(ov.Tensor(3 * x))
    second.infer()
    equal(first.get_output_tensor().data, np.abs(3 * x))


def test_small_beside_large(compiled: Any) -> None:
    net = Net("both")
    given = net.parameter("f32", (-1, 6), "x")
    net.result(net.layer("Abs", "opset1", [given]))
    net.result(net.layer("ReduceSum", "opset1", [given, net.const(np.array([0, 1]))], {"keep_dims": False}))
    request = compiled(net.build()).create_infer_request()
    for n in range(4):
        with downloading(4):
            results = request.infer([n * X])
        assert results[1] == n * X.sum()
        equal(results[0], np.abs(n * X))


# ---- failures


def test_a_download_that_fails(x: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read raises; the state is that after the inference, and the next read tries again."""
    request = compiled(nets.total(x.shape)).create_infer_request()
    results = request.infer([x])
    with monkeypatch.context() as patch:
        patch.setattr(cp.cuda, "alloc_pinned_memory", refuse)
        for read in (lambda: results[0], lambda: request.get_output_tensor().data):
            with pytest.raises(ov.OpError, match=r"^\[Result\] out of memory: pinned \(layer 'Result"):
                read()
    equal(results[0], x)
    equal(request.query_state()[0].state.data, x)
    equal(request.get_output_tensor().data, x)


def test_the_tensor_after_an_inference_that_fails(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor shows the last result if no step has overwritten it."""
    monkeypatch.setattr(downloads, "LARGE_BYTES", 0)
    request = compiled(nets.fragile()).create_infer_request()
    given = np.array([1, 2], np.float32)
    for n in range(1, 4):
        request.infer([given])
        with pytest.raises(RuntimeError, match="negative values"):
            request.infer([-9 * given])
        equal(request.results[0], n * given)
    equal(request.get_output_tensor().data, 3 * given)


def test_no_memory_for_a_retained_result(x: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference that would overwrite the result fails before it begins."""
    request = compiled(nets.total(x.shape)).create_infer_request()
    for _ in range(3):
        results = request.infer([x])
    with monkeypatch.context() as patch:
        patch.setattr(cp.cuda, "alloc_pinned_memory", refuse)
        with pytest.raises(ov.OpError, match=r"^\[Result\] out of memory"):
            request.infer([x])
    equal(request.query_state()[0].state.data, 3 * x)
    equal(results[0], 3 * x)
    equal(request.infer([x])[0], 4 * x)


def test_no_memory_for_a_copy_of_the_tensor(x: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(nets.total(x.shape)).create_infer_request()
    request.infer([x])
    equal(request.get_output_tensor().data, x)
    with monkeypatch.context() as patch:
        patch.setattr(host_memory, "require", refuse)
        with pytest.raises(ov.OpError, match=r"^\[Result\] out of memory: pinned \(layer 'Result"):
            _ = request.results
    equal(request.results[0], x)


def refuse(*_: Any) -> Any:
    raise MemoryError("out of memory: pinned")


# ---- inputs


@pytest.mark.parametrize("way", ["copied", "shared", "tensor", "own"])
def test_large_inputs(way: str, compiled: Any) -> None:
    """An input too large for pinned memory is copied by chunks, before the graph."""
    request = compiled(nets.one((-1, 6))).create_infer_request()
    before = dict(memory._pinned)  # by address; earlier tests may hold some
    for n, rows in enumerate((1000, 1000, 1000, 100, 100, 100, 1200, 1000, 1000)):
        given = n * np.tile(X, (12, 1))[:rows]
        if way == "own":
            request.get_input_tensor().shape = given.shape
            request.get_input_tensor().data[...] = given
            results = request.infer()
        elif way == "tensor":
            results = request.infer([ov.Tensor(given)])
        else:
            results = request.infer([given], share_inputs=way == "shared")
        equal(results[0], np.abs(given))
        new = [size for address, size in memory._pinned.items() if address not in before]
        assert max(new, default=0) <= 1 << 14
    assert sum(memory._pinned.values()) - sum(before.values()) <= 3 << 14
    _, counters = counted(lambda: request.infer([given]))
    assert counters.h2d_bytes == given.nbytes and counters.graph_launches == 1


def test_large_inputs_that_the_host_reads(compiled: Any) -> None:
    """A value that decides a shape is read on the host from the uploaded input."""
    net = Net("tile")
    repeats = net.parameter("i64", (2000,), "repeats")
    axes = net.const(np.array([0]))
    first = net.layer(
        "Slice", "opset8", [repeats, net.const(np.array([0])), net.const(np.array([2])), net.const(np.array([1])), axes]
    )
    net.result(net.layer("Tile", "opset1", [net.parameter("f32", (2, 3), "x"), first]))
    request = compiled(net.build()).create_infer_request()
    given = np.ones((2, 3), np.float32)
    for n in (1, 2, 2, 3):
        assert request.infer([np.full(2000, n), given])[0].shape == (2 * n, 3 * n)


def test_a_large_pinned_block_is_freed(emulated: str) -> None:
    before = dict(memory._pinned)
    block = transfer.pinned(20_001)
    assert block.nbytes == 20_001 and memory._pinned[block.ctypes.data] == 20_001
    del block
    assert memory._pinned == before
