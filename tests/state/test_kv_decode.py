"""Decode steps that append in place: one binding, and one captured graph, for all lengths up to the capacity."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from ovgpu.runtime.executor import Executor
from tests.emulator import cupy_emu
from tests.harness.ir import Net, Port
from tests.harness.layers import (
    add,
    broadcast,
    concat,
    convert,
    extent,
    gather,
    i64,
    mul,
    numbers,
    reduce,
    scalar,
    transpose,
    unsqueeze,
)
from tests.harness.models.drive import DATA, Decoder, decoder_inputs
from tests.models.test_decoding import expected_tokens, prompt

HEADS, WIDTH = 2, 64  # the initial capacity is 16 rows


def attending(
    mask: bool = True,
    before: Callable[[Net, Port], Port] = lambda net, x: x,
    rows: Any = -1,
    kind: str = "f32",
    **named: Any,
) -> Net:
    """Build attention of q to caches of k and v, with a declared number of ``rows``. ``before`` transforms a cache
    before attention; ``kind`` is the element type of the mask's input."""
    net = Net()
    q, k, v = (net.parameter("f32", (-1, HEADS, -1, WIDTH), name) for name in "qkv")
    beams = net.parameter("i32", (-1,), "beams")
    seen = []
    for name, x in (("keys", k), ("values", v)):
        start = broadcast(net, scalar(net, 0), concat(net, [extent(net, x, 0), i64(net, [HEADS, 0, WIDTH])], 0))
        past = gather(net, net.read_value(name, "f32", (-1, HEADS, rows, WIDTH), start), beams)
        after = concat(net, [past, x], 2)
        net.assign(name, after)
        seen.append(before(net, after))
    hidden = net.parameter(kind, (-1, -1), "hidden")  # [batch, keys]
    if kind != "f32":
        hidden = convert(net, hidden, "f32")
    masks = [unsqueeze(net, mul(net, hidden, scalar(net, -50)), [1, 2])] if mask else []
    attrs = {"causal": False} | named
    net.result(net.layer("ScaledDotProductAttention", "opset13", [q, *seen, *masks], attrs))
    if not mask:
        net.result(add(net, hidden, hidden))
    return net


def request_of(net: Net, device: str) -> Any:
    return ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()


class Twins:
    """Request on the device, and a reference request on the CPU."""

    def __init__(self, net: Net, device: str, looks: bool = True) -> None:
        """Make both requests. ``looks`` compares the states after each inference; nothing else reads them."""
        self.found, self.reference, self.looks = request_of(net, device), request_of(net, "CPU"), looks

    def inputs(self, rows: int, beams: Sequence[int], batch: int) -> dict[str, Any]:
        """Return the inputs of a step that appends ``rows`` rows to each sequence of a batch."""
        (state, *_) = self.reference.query_state()
        had = state.state.shape[2]
        q, k, v = (numbers(batch, HEADS, rows, WIDTH, seed=had + i) / 9 for i in range(3))
        hidden = (numbers(batch, had + rows, seed=had) > 5).astype(np.float32)
        hidden[:, -1] = 0
        return {"q": q, "k": k, "v": v, "beams": np.array(beams, np.int32), "hidden": hidden}

    def feed(self, rows: int, beams: Sequence[int] = (0, 1)) -> bool:
        """Append ``rows`` rows, and return whether a decode step ran, which is bound only once."""
        inputs = self.inputs(rows, beams, len(beams))
        results = [list(request.infer(inputs).to_tuple()) for request in (self.found, self.reference)]
        for found, want in zip(*results, strict=True):
            np.testing.assert_allclose(found, want, 2e-5, 2e-5)
        if self.looks:
            self.compare()
        return self.appended

    def compare(self) -> None:
        for found, want in zip(self.found.query_state(), self.reference.query_state()):
            np.testing.assert_array_equal(found.state.data, want.state.data)

    @property
    def appended(self) -> bool:
        steps = self.found._session._decode_steps if self.found._session.variables.grown else None
        return steps is not None and self.found._session.last is steps.executor

    def both(self, act: Callable[[Any], Any]) -> None:
        for request in (self.found, self.reference):
            act(request)


STEPS = 260  # of which 253 need three capacities


def test_one_graph_for_hundreds_of_steps(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of one capacity use one graph; there are three capacities."""
    bound = [0]
    bind = CudaBackend.bind
    monkeypatch.setattr(CudaBackend, "bind", lambda *args: (bound.__setitem__(0, bound[0] + 1), bind(*args))[1])
    decoder = Decoder(ov.Core().compile_model(DATA / "gpt2" / "model.xml", emulated))
    tokens = [decoder.start(prompt(5))]
    counts, bindings = cupy_emu.counters, list[int]()
    for step in range(1, STEPS):
        bound[0] = 0
        counts.reset()
        tokens.append(decoder.step(tokens[-1]))
        if bound[0]:
            bindings.append(step)
        elif step - 1 not in bindings:  # a binding runs once before it is captured
            assert (counts.graph_launches, counts.launches, counts.allocs) == (1, 0, 0), step
    assert bindings == [1, 124, 125, 252, 253]  # two of them move the caches to twice the capacity
    np.testing.assert_array_equal(np.concatenate(tokens, 1), expected_tokens("gpt2", prompt(5), STEPS))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_masks_without_hidden_keys(name: str, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with a uniform mask computes nothing on the host, and binds or looks up nothing, at any length."""
    calls = [0]
    for owner, method in ((CpuBackend, "bind"), (CpuBackend, "make_array"), (Executor, "_binding_for")):
        plain = getattr(owner, method)
        monkeypatch.setattr(
            owner, method, lambda *args, plain=plain: (calls.__setitem__(0, calls[0] + 1), plain(*args))[1]
        )
    decoder = Decoder(ov.Core().compile_model(DATA / name / "model.xml", emulated))
    tokens = [decoder.start(prompt(5))]
    for _ in range(4):
        tokens.append(decoder.step(tokens[-1]))
    calls[0] = 0
    for _ in range(6):
        cupy_emu.counters.reset()
        tokens.append(decoder.step(tokens[-1]))
        assert cupy_emu.counters.graph_launches == 1
    assert calls[0] == 0
    # ids, positions if the model takes them, one mask for all layers, and the lengths of the caches
    uploads = [step for step in decoder.request.plan().steps if step.op == "Upload" and step.calls]
    assert len(uploads) == (4 if "position_ids" in decoder.names else 3)
    np.testing.assert_array_equal(np.concatenate(tokens, 1), expected_tokens(name, prompt(5), 11))


def test_prompts_of_one_length(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset the states are at their old addresses, so that nothing is bound again in either buffer."""
    bound = [0]
    bind = CudaBackend.bind
    monkeypatch.setattr(CudaBackend, "bind", lambda *args: (bound.__setitem__(0, bound[0] + 1), bind(*args))[1])
    decoder, counts = Decoder(ov.Core().compile_model(DATA / "llama" / "model.xml", emulated)), cupy_emu.counters
    tokens = decoder.start(prompt(5))
    for number in range(8):
        bound[0] = 0
        counts.reset()
        np.testing.assert_array_equal(decoder.start(prompt(5)), tokens)
        if number > 3:
            assert (bound[0], counts.graph_launches, counts.launches, counts.allocs) == (0, 1, 0, 0)
    np.testing.assert_array_equal(decoder.start(prompt(7)), expected_tokens("llama", prompt(7), 1))


def test_the_device_works_while_the_host_binds(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first inference of a new length runs each step before the next one is bound."""
    bind, ran, before = CudaBackend.bind, [0], list[int]()

    def run(call: Any) -> None:
        ran[0] += 1
        call()

    def counted(*args: Any) -> list[Any]:
        before.append(ran[0])
        return [partial(run, call) for call in bind(*args)]

    decoder = Decoder(ov.Core().compile_model(DATA / "llama" / "model.xml", emulated))
    decoder.start(prompt(5))
    monkeypatch.setattr(CudaBackend, "bind", counted)
    decoder.start(prompt(7))
    assert len(before) > 20 and len(set(before)) > len(before) // 2


def test_masks_that_hide_some_and_none_in_turn(emulated: str) -> None:
    """A mask is written again if its memory holds another one, whether uniform or not."""
    core = ov.Core()
    requests = [
        core.compile_model(DATA / "llama" / "model.xml", device).create_infer_request() for device in (emulated, "CPU")
    ]
    random, length = np.random.default_rng(5), 0
    for number, rows in enumerate((5, 1, 1, 1, 2, 1, 1, 1, 3, 1, 1, 1, 1)):
        length += rows
        mask = np.ones((1, length), np.int64)
        if number % 3 == 2:
            mask[0, : 1 + number // 3] = 0
        inputs = decoder_inputs(random.integers(0, 100, (1, rows)), mask)
        found, want = ([np.array(x) for x in request.infer(inputs).to_tuple()] for request in requests)
        np.testing.assert_allclose(found[0], want[0], 1e-4, 1e-4)


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_steps_that_become_decode_steps(mask: bool, looks: bool, device: str) -> None:
    """Decode steps do not run the first inference, long ones, cache moves, or beams that are not the identity."""
    twins = Twins(attending(mask), device, looks)
    assert [twins.feed(n) for n in (3, 1, 2, 1)] == [False, *[device != "CPU"] * 3]
    if device == "CPU":
        return
    assert [twins.feed(n) for n in (9, 1, 1)] == [True, False, True]  # the capacity is 16 rows
    assert [twins.feed(1, beams) for beams in ((1, 0), (0, 1), (1, 1), (0, 1))] == [False, True, False, True]
    assert [twins.feed(1, beams) for beams in ((0,), (0,), (0, 0), (0, 1))] == [False, True, False, True]
    assert [twins.feed(n) for n in (17, 1)] == [False, True]
    twins.both(lambda request: request.reset_state())
    assert [twins.feed(n) for n in (1, 1, 0, 1)] == [False, True, False, True]
    twins.compare()
    assert twins.feed(1)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize(("had", "beams", "batch"), [(1, (0,), 2), (2, (0, 1), 1), (2, (0, 1), 3), (1, (0, 0), 1)])
def test_other_rows_than_beams_are_an_error(
    had: int, beams: Sequence[int], batch: int, mask: bool, device: str
) -> None:
    """As Concat's, also in a decode step, which would write beside the cache. The states stay as they were."""
    twins = Twins(attending(mask), device)
    twins.feed(3, range(had))
    twins.feed(1, range(had))
    inputs = twins.inputs(1, beams, batch)
    for request in (twins.found, twins.reference):
        with pytest.raises(ov.OpError, match=f"extents {len(beams)} and {batch} of axis 0 differ .*layer 'Concat"):
            request.infer(inputs)
    twins.compare()
    assert twins.feed(1, range(had)) == (device != "CPU")


def test_inputs_of_other_batches_than_each_other(emulated: str) -> None:
    """A decode step fails, or gives the results, as the whole model does; a failed one leaves the states alone."""
    random, twins, seen = np.random.default_rng(0), Twins(attending(), emulated), set[bool]()
    for batches in random.integers(1, 4, (60, 5)).tolist():
        twins.both(lambda request: request.reset_state())
        rows = range(int(random.integers(1, 3)))
        assert [twins.feed(3, rows), twins.feed(1, rows)] == [False, True]
        given = [twins.inputs(1, [i % len(rows) for i in range(batch)], batch) for batch in batches]
        inputs = {name: given[i][name] for i, name in enumerate(("q", "k", "v", "beams", "hidden"))}
        outcomes = [outcome(request, inputs) for request in (twins.found, twins.reference)]
        seen.add(outcomes[1] is None)
        assert (outcomes[0] is None) == (outcomes[1] is None), batches
        if outcomes[1] is not None:
            np.testing.assert_allclose(*outcomes, 2e-5, 2e-5)
        twins.compare()
    assert seen == {True, False}


def outcome(request: Any, inputs: dict[str, Any]) -> Any:
    """Return the result of an inference, None if it fails."""
    try:
        (result,) = request.infer(inputs).to_tuple()
    except ov.OpError:
        return None
    return np.array(result)


@pytest.mark.parametrize("looks", [True, False])
def test_states_of_other_lengths(looks: bool, emulated: str) -> None:
    twins = Twins(attending(), emulated, looks)
    twins.feed(3)
    value = numbers(2, HEADS, 7, WIDTH)

    def set_all(request: Any) -> None:
        for state in request.query_state():
            state.state = ov.Tensor(value)

    twins.both(set_all)
    assert [twins.feed(1), twins.feed(1)] == [True, True]
    twins.found.query_state()[0].state = ov.Tensor(value)
    with pytest.raises(ov.Error, match="8 keys and 10 values"):
        twins.feed(1)


@pytest.mark.parametrize("looks", [True, False])
def test_a_failure_leaves_the_caches(looks: bool, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(attending(), emulated, looks)
    assert [twins.feed(1) for _ in range(4)] == [False, True, True, True]
    request = twins.found
    before = [np.array(s.state.data) for s in request.query_state()]

    def fail(*_: Any) -> None:
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(CudaBackend, "synchronize", fail)
        with pytest.raises(Exception, match="no"):
            request.infer()
    for state, value in zip(request.query_state(), before):
        np.testing.assert_array_equal(state.state.data, value)
    assert twins.feed(1)


@pytest.mark.parametrize("looks", [True, False])
def test_variables_of_bounded_length(looks: bool, emulated: str) -> None:
    """A value beyond the bound is refused as in any other step, and leaves both caches."""
    twins = Twins(attending(rows="0..4"), emulated, looks)
    assert [twins.feed(2), twins.feed(1), twins.feed(1)] == [False, True, True]
    with pytest.raises(ov.Error, match="the new value"):
        twins.feed(1)
    assert [state.state.shape[2] for state in twins.found.query_state()] == [4, 4]


def test_an_input_of_any_type(emulated: str) -> None:
    """Decode steps are planned before an input is seen, and not at all if one has no type."""
    twins = Twins(attending(kind="dynamic"), emulated)
    assert [twins.feed(n) for n in (3, 1, 1)] == [False] * 3


def test_masks_of_other_lengths(emulated: str) -> None:
    """They are refused, as in any other step, and leave the caches."""
    twins = Twins(attending(), emulated)
    twins.feed(1)
    assert twins.feed(1)
    for keys in (2, 40):
        with pytest.raises(ov.Error, match=f"a mask of {keys} columns does not fit 3 keys"):
            twins.found.infer({"hidden": np.zeros((2, keys), np.float32)})
    assert twins.feed(1)


def test_inputs_on_the_device(emulated: str) -> None:
    """With an input on the device the host cannot compute the mask, and no decode step runs."""
    twins = Twins(attending(), emulated)
    twins.feed(1)
    assert twins.feed(1)
    hidden = cupy_emu.zeros((2, 3), np.float32)
    twins.found.infer({"hidden": hidden})
    assert not twins.appended


def test_caches_transposed_before_attention(emulated: str) -> None:
    def transposed_twice(net: Net, x: Port) -> Port:
        return transpose(net, transpose(net, x, [0, 2, 1, 3]), [0, 2, 1, 3])

    twins = Twins(attending(True, transposed_twice), emulated)
    assert [twins.feed(1) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    "net",
    [
        attending(causal=True),  # row i sees i + 1 keys, at any position of the text
        attending(True, lambda net, x: add(net, x, x)),  # reads all rows of a cache
        attending(False, lambda net, x: concat(net, [x, x], 2)),
    ],
)
def test_other_uses_of_caches(net: Net, emulated: str) -> None:
    twins = Twins(net, emulated)
    assert [twins.feed(1) for _ in range(3)] == [False] * 3


def test_the_plan_moves_only_new_rows(emulated: str) -> None:
    twins = Twins(attending(), emulated)
    for _ in range(4):
        twins.feed(1)
    plan = twins.found.plan()
    assert plan.launches == 1 and not plan.copies()
    assert plan.state == 2 * 16 * 2 * HEADS * WIDTH * 4
    assert {x.location for s in plan.steps if s.op == "CacheWrite" for x in s.outputs} == {
        "variable keys",
        "variable values",
    }
    row = 2 * HEADS * WIDTH * 4
    assert sum(s.bytes_written for s in plan.steps if s.op == "CacheWrite") == 2 * row
    (attention,) = [s for s in plan.steps if s.op == "CachedAttention"]
    assert attention.bytes_read == row + 2 * 4 * row + 2 * 4 * 4 + 16  # q, 4 rows of keys and values, mask, lengths


def test_release_memory(device: str) -> None:
    """Executors, steps and initial values are freed, but the caches stay."""
    twins = Twins(attending(), device)
    twins.feed(3), twins.feed(1)
    request = twins.found
    session = request._session
    parts = [*session._executors.values(), *(executor for executor, _ in session.initial._executors.values())]
    if request._session._decode_steps is not None:
        parts += [
            request._session._decode_steps.executor,
            *(part.executor for part in request._session._decode_steps._host_parts.values()),
        ]
    alive = [ref(executor) for executor in parts]
    assert len(alive) == (2 if device == "CPU" else 4)
    del parts
    request._session.forget()
    gc.collect()
    assert not any(executor() for executor in alive)
    with pytest.raises(RuntimeError, match="there is no plan"):
        request.plan()
    assert [twins.feed(1), twins.feed(1)] == [device != "CPU"] * 2


def test_a_variable_that_nothing_sets(device: str) -> None:
    """It begins anew with every inference, from an input that a decode step gets besides its own."""
    net = attending()
    unset = net.read_value("kept", "f32", None, mul(net, net.parameters["q"], net.parameters["q"]), version="opset3")
    net.result(reduce(net, "ReduceSum", unset, [2]))
    twins = Twins(net, device, looks=False)
    assert [twins.feed(1) for _ in range(4)][2:] == [device != "CPU"] * 2


@pytest.mark.emulator
def test_outgrown_memory_is_freed(device: str) -> None:
    """Bindings do not keep outgrown memory alive."""
    twins = Twins(attending(), device)
    blocks: list[Any] = []
    for _ in range(70):  # capacities of 16, 32, 64 and 128 rows
        twins.feed(1)
        now = [buffer.memory for variable in twins.found._session.variables.all.values() for buffer in variable.buffers]
        now = [getattr(block, "mem", block) for block in now if block is not None]
        blocks += [ref(block) for block in now if all(known() is not block for known in blocks)]
    del now
    gc.collect()
    assert len(blocks) >= 8
    assert [block() is not None for block in blocks] == [False] * (len(blocks) - 2) + [True] * 2
