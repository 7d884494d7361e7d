"""SequenceBatcher: every sequence gets what it gets from a request of its own, on NumPy and on the emulated card."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import chain
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching.gathering import BatchRun
from ovgpu.batching.request import BatchRequest
from tests.batching import nets

Array = np.ndarray[Any, Any]
Inputs = dict[str, Any]

MODELS: dict[str, Callable[[], ov.Model]] = {
    "streaming_lstm": nets.streaming_lstm,
    "sums": nets.sums,
    "first_frame": nets.first_frame,
    "time_major": nets.time_major,
    "iterated": nets.iterated,
    "switched": nets.switched,
}


def step(model: ov.Model, rng: np.random.Generator) -> Inputs:
    """Return random inputs of one step."""
    return {
        port.any_name: rng.standard_normal(tuple(port.shape)).astype(np.float32)
        if port.any_name != "gain"
        else np.float32(rng.choice([0.5, 2.0]))
        for port in model.inputs
    }


def steps(model: ov.Model, count: int, seed: int = 0) -> list[Inputs]:
    rng = np.random.default_rng(seed)
    return [step(model, rng) for _ in range(count)]


def alone(model: ov.Model, inputs: list[Inputs], device: str = "CPU") -> list[tuple[Array, ...]]:
    """Return the results of a request of its own."""
    request = ov.Core().compile_model(model, device).create_infer_request()
    return [request.infer(x).to_tuple() for x in inputs]


def close_to(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 2e-6, 2e-6)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", MODELS)
def test_many_threads(name: str, device: str) -> None:
    """Sequences of different lengths begin and end at different times."""
    model = MODELS[name]()
    data = [steps(model, 3 + i % 4, i) for i in range(9)]
    found: dict[int, Any] = {}

    def run(i: int) -> None:
        time.sleep(0.002 * i)
        with batcher.open() as sequence:
            found[i] = [sequence.infer(x).to_tuple() for x in data[i]]

    with ov.SequenceBatcher(model, 8, device, max_wait_ms=5) as batcher:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run(8)
        assert len(batcher) == 0
    for i, inputs in enumerate(data):
        for got, wanted in zip(found[i], alone(model, inputs, device), strict=True):
            close_to(got, wanted)


def test_a_sequence_without_a_step_keeps_its_state_to_the_last_bit(device: str) -> None:
    model = nets.streaming_lstm()
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=0) as batcher:
        quiet, busy = batcher.open(), batcher.open()
        quiet.infer(step(model, np.random.default_rng(0)))
        before = {name: value.data.copy() for name, value in quiet.state.items()}
        for inputs in steps(model, 5, 1):
            busy.infer(inputs)
        for name, value in quiet.state.items():
            assert value.data.tobytes() == before[name].tobytes()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_the_values_of_other_sequences(name: str, device: str) -> None:
    """The same sequence, in the same slot of a batch of the same size, beside others of other values."""
    model = MODELS[name]()
    inputs = steps(model, 3, 1)
    found = []
    for seed in (2, 3):
        with ov.SequenceBatcher(model, 3, device, max_wait_ms=1000) as batcher:
            sequences = [batcher.open() for _ in range(3)]
            results = []
            for i, x in enumerate(inputs):
                others = [steps(model, 3, 10 * seed + row)[i] for row in range(2)]
                if "gain" in x:  # steps in which it differs run in different inferences
                    others = [{**other, "gain": x["gain"]} for other in others]
                futures = [s.submit(y) for s, y in zip(sequences, [others[0], x, others[1]])]
                results.append(futures[1].result().to_tuple())
            found.append((results, [value.data.copy() for value in sequences[1].state.values()]))
    (first, state), (second, other_state) = found
    for a, b in zip([*chain(*first), *state], [*chain(*second), *other_state], strict=True):
        assert a.tobytes() == b.tobytes()


def test_the_batch_grows_and_shrinks(device: str) -> None:
    model = nets.sums()
    with ov.SequenceBatcher(model, 16, device, max_wait_ms=0) as batcher:
        sequences = [batcher.open() for _ in range(9)]
        data = [steps(model, 6, i) for i in range(9)]
        wanted = [alone(model, x) for x in data]
        for sequence, inputs, results in zip(sequences, data, wanted):
            close_to(sequence.infer(inputs[0]).to_tuple(), results[0])
        assert batcher.batch_size == 16
        for sequence in sequences[:8]:
            sequence.close()
        close_to(sequences[8].infer(data[8][1]).to_tuple(), wanted[8][1])
        assert batcher.batch_size == 1
        other = batcher.open()
        close_to(other.infer(data[0][0]).to_tuple(), wanted[0][0])
        close_to(sequences[8].infer(data[8][2]).to_tuple(), wanted[8][2])
        assert batcher.batch_size == 2


def test_reset_and_reopened_slots_begin_with_the_initial_state(device: str) -> None:
    model = nets.sums()
    inputs = steps(model, 2)
    wanted = alone(model, inputs)
    with ov.SequenceBatcher(model, 2, device, max_wait_ms=0) as batcher:
        kept, sequence = batcher.open(), batcher.open()
        for x, y in zip(inputs, wanted):
            close_to(sequence.infer(x).to_tuple(), y)
            close_to(kept.infer(x).to_tuple(), y)
        sequence.reset()
        assert sequence.state["n"].data.tolist() == [0]
        close_to(sequence.infer(inputs[0]).to_tuple(), wanted[0])
        sequence.close()
        with batcher.open() as again:
            close_to(again.infer(inputs[0]).to_tuple(), wanted[0])
        assert kept.state["n"].data.tolist() == [2]


@pytest.mark.parametrize("name", ["streaming_lstm", "sums", "time_major"])
def test_states_move_between_batchers_and_requests(name: str, device: str) -> None:
    model = MODELS[name]()
    inputs = steps(model, 4)
    wanted = alone(model, inputs)
    request = ov.Core().compile_model(model, device).create_infer_request()
    with (
        ov.SequenceBatcher(model, 4, device, max_wait_ms=0) as first,
        ov.SequenceBatcher(model, 4, device, max_wait_ms=0) as second,
    ):
        sequence, _, other = first.open(), second.open(), second.open()
        sequence.infer(inputs[0])
        other.state = sequence.state
        close_to(other.infer(inputs[1]).to_tuple(), wanted[1])
        for state in request.query_state():
            state.state = other.state[state.name]
        close_to(request.infer(inputs[2]).to_tuple(), wanted[2])
        sequence.state = {state.name: state.state.data for state in request.query_state()}
        close_to(sequence.infer(inputs[3]).to_tuple(), wanted[3])


def test_states_that_do_not_fit(device: str) -> None:
    with ov.SequenceBatcher(nets.sums(), 2, device) as batcher:
        sequence = batcher.open()
        state = {name: value.data for name, value in sequence.state.items()}
        for wrong, message in (
            ({"s": state["s"]}, "no value of variable 'n'"),
            ({**state, "s": state["s"][:, 1:]}, "'s' has shape"),
            ({**state, "n": state["n"].astype(np.int16)}, "'n' has type i64"),
            ({**state, "n": np.zeros(2, np.int64)}, "of one row"),
        ):
            with pytest.raises(ov.Error, match=message):
                sequence.state = wrong
        assert sequence.infer(np.zeros((1, nets.SIZE), np.float32))["steps"].tolist() == [1]


def test_only_the_sequence_at_fault_gets_an_error() -> None:
    """A wrong length is an error on the CPU. The others' steps are computed, and no state is lost."""
    model = nets.picky()
    good = [{"x": np.full((1, nets.SIZE), i, np.float32), "length": np.array([3], np.int32)} for i in range(1, 4)]
    bad = {**good[0], "length": np.array([nets.SIZE + 1], np.int32)}
    with ov.SequenceBatcher(model, 3, "CPU", max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(3)]
        for future in [s.submit(x) for s, x in zip(sequences, good)]:
            future.result()
        futures = [s.submit(x) for s, x in zip(sequences, [good[0], bad, good[2]])]
        with pytest.raises(ov.OpError, match=r"\[ReverseSequence\].*reverse"):
            futures[1].result()
        np.testing.assert_array_equal(futures[0].result()["y"], 2 * good[0]["x"])
        np.testing.assert_array_equal(futures[2].result()["y"], 2 * good[2]["x"])
        last = [s.submit(x) for s, x in zip(sequences, good)]
        np.testing.assert_array_equal(last[1].result()["y"], 2 * good[1]["x"])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"frame": np.zeros((2, 40), np.float32)}, RuntimeError, "extent of batch axis 0 is 2, but must be 1 "),
        ({"frame": np.zeros((1, 41), np.float32)}, RuntimeError, "incompatible"),
        ({"no": np.zeros((1, 40), np.float32)}, RuntimeError, "not found"),
        ({}, RuntimeError, "has no value"),
        (object(), TypeError, "Incompatible inputs"),
        (ov.Tensor(np.zeros((1, 40), np.int32)), RuntimeError, "type i32"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, error: type[Exception], message: str) -> None:
    with ov.SequenceBatcher(nets.streaming_lstm(), 2, "CPU") as batcher, batcher.open() as sequence:
        with pytest.raises(error, match=message):
            sequence.submit(inputs)
        sequence.infer(np.zeros((1, 40)))  # converted


def test_too_many_sequences() -> None:
    with ov.SequenceBatcher(nets.sums(), 2, "CPU") as batcher:
        first, _second = batcher.open(), batcher.open()
        with pytest.raises(ov.BatchFullError, match="all 2 sequences"):
            batcher.open()
        first.close()
        batcher.open()
    with pytest.raises(ValueError, match="max_sequences"):
        ov.SequenceBatcher(nets.sums(), 0, "CPU")


def test_closing() -> None:
    model = nets.sums()
    x = np.ones((1, nets.SIZE), np.float32)
    batcher = ov.SequenceBatcher(model, 3, "CPU", max_wait_ms=60_000)
    _idle, sequence, closed = batcher.open(), batcher.open(), batcher.open()
    futures = [sequence.submit(x) for _ in range(3)]
    lost = closed.submit(x)
    closed.close()
    with pytest.raises(CancelledError):
        lost.result()
    with pytest.raises(ov.Error, match="sequence is closed"):
        closed.infer(x)
    with pytest.raises(ov.Error, match="sequence is closed"):
        _ = closed.state
    batcher.close()  # runs the steps that wait
    assert [f.result()["steps"].item() for f in futures] == [1, 2, 3]
    with pytest.raises(ov.Error, match="batcher is closed"):
        sequence.infer(x)
    with pytest.raises(ov.Error, match="batcher is closed"):
        batcher.open()
    closed.close()
    batcher.close()


def test_steps_submitted_together_share_a_batch() -> None:
    runs: list[Any] = []
    with ov.SequenceBatcher(nets.sums(), 8, "CPU", max_wait_ms=0, observer=runs.append) as batcher:
        sequences = [batcher.open() for _ in range(5)]
        for _ in range(20):
            with batcher.together():
                futures = [sequence.submit([np.ones((1, nets.SIZE), np.float32)]) for sequence in sequences]
            for future in futures:
                future.result()
    assert [run.rows for run in runs] == [5] * 20


def test_a_callback_may_close_the_batcher() -> None:
    batcher = ov.SequenceBatcher(nets.sums(), 1, "CPU", max_wait_ms=0)
    closed = threading.Event()
    future = batcher.open().submit(np.ones((1, nets.SIZE), np.float32))
    future.add_done_callback(lambda _: (batcher.close(), closed.set()))
    assert closed.wait(10)


def test_cancelled_steps_are_left_out() -> None:
    with ov.SequenceBatcher(nets.sums(), 2, "CPU", max_wait_ms=200) as batcher:
        _idle, sequence = batcher.open(), batcher.open()
        futures = [sequence.submit(np.ones((1, nets.SIZE), np.float32)) for _ in range(3)]
        assert futures[0].cancel() and futures[2].cancel()
        assert futures[1].result()["steps"].tolist() == [1]
        assert sequence.state["n"].data.tolist() == [1]


def test_a_dropped_batcher_ends_its_thread() -> None:
    before = threading.active_count()
    batcher = ov.SequenceBatcher(nets.sums(), 2, "CPU")
    sequence = batcher.open()
    sequence.infer(np.ones((1, nets.SIZE), np.float32))
    del batcher, sequence
    gc.collect()
    for _ in range(100):
        if threading.active_count() == before:
            return
        time.sleep(0.02)
    pytest.fail("the thread goes on")


def test_a_dropped_sequence_frees_its_slot() -> None:
    with ov.SequenceBatcher(nets.sums(), 1, "CPU") as batcher:
        sequence = batcher.open()
        del sequence
        gc.collect()
        batcher.open()


def test_a_callback_may_submit_and_cannot_wait_for_itself() -> None:
    x = np.ones((1, nets.SIZE), np.float32)
    with ov.SequenceBatcher(nets.sums(), 1, "CPU", max_wait_ms=0) as batcher, batcher.open() as sequence:
        seen: list[Any] = []
        done = threading.Event()

        def again(future: Any) -> None:
            try:
                seen.append(sequence.submit(x))
                _ = sequence.state
            except ov.Error as error:
                seen.append(error)
            done.set()

        sequence.submit(x).add_done_callback(again)
        assert done.wait(10)
        assert "would wait" in str(seen[1]) and seen[0].result()["steps"].tolist() == [2]


def test_a_compiled_model_gives_its_model_and_properties(device: str) -> None:
    model = nets.sums()
    compiled = ov.Core().compile_model(model, device, {"PERFORMANCE_HINT": "THROUGHPUT"})
    with ov.SequenceBatcher(compiled, 2) as batcher:
        assert batcher.compiled_model.get_property("PERFORMANCE_HINT") == "THROUGHPUT"
        assert batcher.max_sequences == 2
        with batcher.open() as sequence:
            inputs = steps(model, 1)
            close_to(sequence.infer(inputs[0]).to_tuple(), alone(model, inputs)[0])


def test_states_are_kept_by_one_kernel(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All variables of all idle slots take one launch, and none if no slot is idle."""
    model = nets.streaming_lstm()
    calls: list[int] = []
    bind = BatchRequest._copy_rows

    def counted(self: BatchRequest, copies: Any, rows: Any) -> None:
        found = self.session.backend.bind

        def counting(*args: Any) -> Any:
            recorded = found(*args)
            calls.append(len(recorded))
            return recorded

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.session.backend, "bind", counting)
            bind(self, copies, rows)

    with ov.SequenceBatcher(model, 4, emulated, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(4)]
        data = steps(model, 4)
        for future in [s.submit(data[0]) for s in sequences]:
            future.result()
        monkeypatch.setattr(BatchRequest, "_copy_rows", counted)
        for future in [s.submit(data[1]) for s in sequences]:
            future.result()
        assert calls == []
        futures = [s.submit(data[2]) for s in sequences[:2]]
        sequences[2].close()
        sequences[3].close()
        batcher.open()
        batcher.open()
        for future in futures:
            future.result()
        assert calls == [1]


def test_idle_states_are_copied_by_the_calls_of_an_earlier_step(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the same slots have a step again, no kernel is prepared anew; states alternate between two buffers."""
    from ovgpu.ops.fused.copy_rows import CopyRows

    model, prepared = nets.streaming_lstm(), list[Any]()
    with ov.SequenceBatcher(model, 4, emulated, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(4)]
        data = [steps(model, 9, i) for i in range(3)]
        wanted = [alone(model, x, emulated) for x in data]
        cuda = CopyRows.cuda
        for number in range(9):
            if number == 5:  # the first two are captured; two more prepare a copy to each buffer
                monkeypatch.setattr(CopyRows, "cuda", lambda *args: prepared.append(args) or cuda(*args))
            with batcher.together():
                futures = [s.submit(x[number]) for s, x in zip(sequences[: 4 if number == 0 else 3], data)]
                if number == 0:
                    futures.append(sequences[3].submit(data[0][0]))
                    kept = None
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(batcher._slots[0].gatherer, "_max_wait", 0)
                for future, x in zip(futures, wanted):
                    close_to(future.result().to_tuple(), x[number])
            state = {name: value.data.tobytes() for name, value in sequences[3].state.items()}
            assert kept is None or state == kept
            kept = state
    assert prepared == []


@pytest.mark.parametrize("make", [nets.streaming_lstm, nets.time_major], ids=["first-axis", "second-axis"])
def test_results_stay_valid_and_apart(make: Any, device: str) -> None:
    model = make()
    with ov.SequenceBatcher(model, 3, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(3)]
        data = [steps(model, 4, i) for i in range(3)]
        found: list[list[Any]] = [[], [], []]
        for number in range(4):
            with batcher.together():
                futures = [s.submit(x[number]) for s, x in zip(sequences, data)]
            for results, future in zip(found, futures):
                results.append(future.result().to_tuple())
        found[0][1][0][...] = 7  # a result is the caller's own
        for results, x in zip(found[1:], data[1:]):
            for ours, theirs in zip(results, alone(model, x, device), strict=True):
                close_to(ours, theirs)
                assert all(y.flags.writeable and y.strides == np.empty_like(y, order="C").strides for y in ours)


# ---- the only sequence


def test_a_step_runs_at_once_only_if_no_other_sequence_is_open(device: str) -> None:
    model, runs = nets.streaming_lstm(), list[BatchRun]()
    data = steps(model, 4)
    wanted = alone(model, data, device)
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=0, observer=runs.append) as batcher:
        sequence = batcher.open()
        assert sequence.try_infer(data[0]) is None  # the first step makes the batch
        sequence.infer(data[0])
        outputs = sequence.try_infer(data[1])
        assert outputs is not None
        close_to(outputs.to_tuple(), wanted[1])
        assert [(run.rows, run.slots) for run in runs] == [(1, 1)] * 2 and runs[1].waited == (0.0,)
        with pytest.raises(RuntimeError):
            sequence.try_infer({"frame": np.zeros((1, 1), np.float32)})
        # NumPy gives arrays of other processes other objects as types, which are equal to the usual ones.
        outputs = sequence.try_infer(pickle.loads(pickle.dumps(data[2])))
        assert outputs is not None
        close_to(outputs.to_tuple(), wanted[2])
        with batcher.together():  # in which it would wait for the batcher's thread, and that for this one
            assert sequence.try_infer(data[3]) is None
        with batcher.open() as other:
            assert sequence.try_infer(data[3]) is None and other.try_infer(data[0]) is None
            other.infer(data[0])
        assert sequence.try_infer(data[3]) is None  # the batch still has two slots
        close_to(sequence.infer(data[3]).to_tuple(), wanted[3])
    assert len(runs) == 5


def test_steps_of_the_only_sequence_run_in_the_thread_that_calls(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, threads = nets.streaming_lstm(), list[int]()
    infer = BatchRequest.infer_alone

    def watched(self: BatchRequest, inputs: Any) -> Any:
        threads.append(threading.get_ident())
        return infer(self, inputs)

    monkeypatch.setattr(BatchRequest, "infer_alone", watched)
    data, others = steps(model, 9), steps(model, 2, 1)
    wanted, beside = alone(model, data, device), alone(model, others, device)
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=0) as batcher:
        sequence = batcher.open()
        close_to(sequence.infer(data[0]).to_tuple(), wanted[0])  # the first step, by the batcher's thread
        assert threads == []
        for x, results in list(zip(data, wanted))[1:4]:
            close_to(sequence.infer(list(x.values())).to_tuple(), results)
        assert threads == [threading.get_ident()] * 3
        with batcher.open() as other:
            for x, results in zip(others, beside):
                close_to(other.infer(x).to_tuple(), results)
            close_to(sequence.infer(data[4]).to_tuple(), wanted[4])
        assert len(threads) == 3
        close_to(sequence.submit(data[5]).result().to_tuple(), wanted[5])  # shrinks no batch of two
        sequence.reset()
        close_to(sequence.infer(data[0]).to_tuple(), wanted[0])
        state = sequence.state
        close_to(sequence.infer(data[1]).to_tuple(), wanted[1])
        sequence.state = state
        close_to(sequence.infer(data[1]).to_tuple(), wanted[1])
        with pytest.raises(RuntimeError, match="incompatible"):
            sequence.infer({"frame": np.zeros((1, 41), np.float32)})
        close_to(sequence.infer(data[2]).to_tuple(), wanted[2])
    with pytest.raises(ov.Error, match="batcher is closed"):
        sequence.infer(data[3])


def test_an_interrupted_step_of_the_only_sequence(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the state as it was, and nothing locked."""
    from ovgpu.request.session import Session

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    model = nets.streaming_lstm()
    data = steps(model, 6)
    wanted = alone(model, data, device)
    with ov.SequenceBatcher(model, 1, device, max_wait_ms=0) as batcher, batcher.open() as sequence:
        for x, results in list(zip(data, wanted))[:4]:
            close_to(sequence.infer(x).to_tuple(), results)
        before = {name: value.data.tobytes() for name, value in sequence.state.items()}
        with monkeypatch.context() as patch:
            patch.setattr(Session, "answer", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sequence.infer(data[4])
        assert {name: value.data.tobytes() for name, value in sequence.state.items()} == before
        close_to(sequence.submit(data[4]).result(10).to_tuple(), wanted[4])
        close_to(sequence.infer(data[5]).to_tuple(), wanted[5])


def test_an_interrupted_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is cancelled, wherever the signal handler raised, and the next ones run."""
    from ovgpu.batching.gathering import Gatherer

    put = Gatherer.put_next

    def interrupted(self: Gatherer, work: Any) -> None:
        put(self, work)
        raise KeyboardInterrupt

    x = np.ones((1, nets.SIZE), np.float32)
    with ov.SequenceBatcher(nets.sums(), 2, "CPU", max_wait_ms=0) as batcher:
        other, sequence = batcher.open(), batcher.open()
        with monkeypatch.context() as patch:
            patch.setattr(Gatherer, "put_next", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sequence.submit(x)
        other.infer(x)  # after the step that was submitted
        assert sequence.state["n"].data.tolist() == [0]
        futures = [sequence.submit(x) for _ in range(2)]
        assert [future.result(10)["steps"].item() for future in futures] == [1, 2]
