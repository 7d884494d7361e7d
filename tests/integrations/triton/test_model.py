"""Models in Triton's Python backend, which is stood in for: their responses are those of requests of ovgpu."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ovgpu as ov
from tests.batching import nets
from tests.batching.test_dynamic_batcher import numbers, perceptron
from tests.emulator import cupy_emu, state
from tests.harness import cuda
from tests.harness.models.transformer import Sizes, llama
from tests.integrations.triton import stand_in
from tests.integrations.triton.instance import loaded, outputs
from tests.integrations.triton.stand_in import TritonError, TritonModelException
from tests.integrations.triton.test_config import frames, written

TOLERANCE = 1e-5
EXACT = ("--precision", "f32")  # cards multiply matrices in TF32 otherwise

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["CPU", "GPU"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the kind of an instance: on the CPU, or on the (emulated) card 0."""
    with cuda.cards(1):
        yield request.param


class Single:
    """A sequence in a request of its own."""

    def __init__(self, model: ov.Model) -> None:
        self._request = ov.Core().compile_model(model, "CPU").create_infer_request()

    def step(self, arrays: dict[str, Array]) -> list[Array]:
        return [np.array(array) for array in self._request.infer(arrays).to_tuple()]


def check(found: dict[str, Any], wanted: list[Array]) -> None:
    for array, expected in zip(found.values(), wanted, strict=True):
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(array, expected, TOLERANCE, TOLERANCE)


# ---- models without states


def test_requests_in_one_batch(tmp_path: Path, kind: str) -> None:
    """Requests of different numbers of rows, lengths and outputs; each gets its own rows, of the types it has."""
    with loaded(written(frames(), tmp_path), kind=kind) as instance:
        given = [
            {
                "x": np.arange(rows * length * 3).reshape(rows, length, 3).astype(bfloat16) - bfloat16(5),
                "flags": np.arange(rows) % 2 == 0,
                "words": np.array([[f"é{row}".encode(), b""] for row in range(rows)], object),
            }
            for rows, length in ((1, 2), (3, 2), (2, 4), (1, 1), (1, 2))
        ]
        requests = [instance.request(arrays, outputs=["no"] if i == 4 else None) for i, arrays in enumerate(given)]
        found = [outputs(response) for response in instance.execute(requests)]
        assert list(found[4]) == ["no"]
        for arrays, out in zip(given[:4], found):
            assert out["y"].dtype == bfloat16
            np.testing.assert_array_equal(out["y"], np.maximum(arrays["x"], 0))
            np.testing.assert_array_equal(out["no"], ~arrays["flags"])
            assert out["same"].tolist() == arrays["words"].tolist()
        empty = instance.execute([instance.request({**given[0], "x": np.zeros((1, 0, 3), bfloat16)})])
        assert outputs(empty[0])["y"].shape == (1, 0, 3)


def test_one_inference_for_a_batch(tmp_path: Path) -> None:
    """Requests that Triton has batched run together, and do not wait for others."""
    with cuda.cards(1), loaded(written(dense(), tmp_path, "--max-wait-ms", "5000", *EXACT), kind="GPU") as instance:
        for rows in (4, 4, 4):
            before = state.counters.graph_launches + state.counters.launches
            started = time.monotonic()
            found = instance.execute([instance.request({"x": numbers(1, seed)}) for seed in range(rows)])
            assert time.monotonic() - started < 4
            launches = state.counters.graph_launches + state.counters.launches - before
        for seed, response in enumerate(found):
            check(outputs(response), Single(dense()).step({"x": numbers(1, seed)}))
        alone = state.counters.graph_launches + state.counters.launches
        instance.infer({"x": numbers(1)})
        assert launches == state.counters.graph_launches + state.counters.launches - alone


def dense() -> ov.Model:
    net = nets.Net("dense")
    net.result(
        net.layer(
            "MatMul",
            "opset1",
            [net.parameter("f32", (-1, nets.SIZE), "x"), nets.weights(net, nets.SIZE, 4)],
            {"transpose_a": False, "transpose_b": False},
            names=["y"],
        )
    )
    return nets.model(net)


def test_requests_without_a_batch(tmp_path: Path, kind: str) -> None:
    """All rows share an input, so that each request runs alone."""
    with loaded(written(perceptron(-1), tmp_path, *EXACT), kind=kind) as instance:
        for rows in (1, 5):
            offset = np.array([rows], np.float32)  # Triton has no scalars
            check(
                instance.infer({"x": numbers(rows), "offset": offset}),
                Single(perceptron(-1)).step({"x": numbers(rows), "offset": offset[0]}),
            )


def test_wrong_requests(tmp_path: Path) -> None:
    """The others of the batch are answered."""
    with loaded(written(dense(), tmp_path)) as instance:
        responses = instance.execute(
            [instance.request(arrays) for arrays in ({"x": numbers(1)}, {"x": np.zeros((1, 7), np.float32)}, {})]
        )
        check(outputs(responses[0]), Single(dense()).step({"x": numbers(1)}))
        for response, message in zip(responses[1:], ("input 'x' has the shape [-1, 8], not [1, 7]", "has no value")):
            error = response.error()
            assert error is not None and message in error.message()
            assert error.code() == TritonError.INVALID_ARG


# ---- sequences


def steps(seed: int, count: int) -> list[dict[str, Array]]:
    return [{"x": numbers(1, 100 * seed + step)} for step in range(count)]


def test_sequences(tmp_path: Path, kind: str) -> None:
    """Batches of random arrivals: each sequence has its own state, whatever its id, length and neighbours."""
    chance = random.Random(7)
    with loaded(written(nets.sums(), tmp_path, "--max-sequences", "6"), kind=kind) as instance:
        waiting = {number if number % 2 else f"s{number}": steps(number, 1 + number % 5) for number in range(1, 40)}
        running: dict[int | str, tuple[list[dict[str, Array]], int, Single]] = {}
        while waiting or running:
            while waiting and len(running) < 6:
                id = next(iter(waiting))
                running[id] = waiting.pop(id), 0, Single(nets.sums())
            chosen = chance.sample(list(running), chance.randint(1, len(running)))
            requests = [
                instance.request(
                    running[id][0][running[id][1]], id, running[id][1] == 0, running[id][1] + 1 == len(running[id][0])
                )
                for id in chosen
            ]
            inputs = {id: running[id][0][running[id][1]] for id in chosen}
            for id, response in zip(chosen, instance.execute(requests)):
                given, done, single = running[id]
                check(outputs(response), single.step(inputs[id]))
                running[id] = given, done + 1, single
                if done + 1 == len(given):
                    del running[id]
        assert not len(instance.model._sequences)


def test_a_decoder(tmp_path: Path, kind: str) -> None:
    """Prompts of different lengths and single tokens in the same batches, without beams."""
    ir = llama(3, Sizes(1, 32, 2, 64, 50, 64, 2)).ir
    model = ov.Core().read_model(*ir)
    folder = written(model, tmp_path, "--max-sequences", "4", *EXACT)
    with loaded(folder, kind=kind) as instance:
        singles = [Single(ov.Core().read_model(*ir)) for _ in range(3)]
        lengths = [0, 0, 0]
        for step in range(4):
            chunks = [1 if step else 3 + row for row in range(3)]
            given = []
            for row, chunk in enumerate(chunks):
                ids = np.random.default_rng(10 * step + row).integers(0, 50, (1, chunk))
                given.append(
                    {
                        "input_ids": ids,
                        "attention_mask": np.ones((1, lengths[row] + chunk), np.int64),
                        "position_ids": np.arange(lengths[row], lengths[row] + chunk)[None],
                    }
                )
                lengths[row] += chunk
            responses = instance.execute(
                [instance.request(arrays, row + 1, step == 0, step == 3) for row, arrays in enumerate(given)]
            )
            for single, arrays, response in zip(singles, given, responses):
                check(outputs(response), single.step({**arrays, "beam_idx": np.zeros(1, np.int32)}))


def test_cancelled_steps_are_left_out(tmp_path: Path) -> None:
    with loaded(written(nets.sums(), tmp_path)) as instance:
        single = Single(nets.sums())
        for step in range(3):
            request = instance.request({"x": numbers(1)}, 5, step == 0)
            request.sender.cancelled = True
            error = instance.execute([request])[0].error()
            assert error is not None and error.code() == TritonError.CANCELLED
            check(instance.infer({"x": numbers(1, step)}, id=5), single.step({"x": numbers(1, step)}))


def test_a_failed_step_leaves_the_state(tmp_path: Path) -> None:
    """Also a first one: the sequence is open, as Triton has it."""
    with loaded(written(nets.picky(), tmp_path)) as instance:
        single = Single(nets.picky())
        wrong = {"x": numbers(1), "length": np.array([99], np.int32)}
        for step in range(3):
            with pytest.raises(TritonError):
                instance.infer(wrong, id=5, start=step == 0)
            given = {"x": numbers(1, step), "length": np.array([3], np.int32)}
            check(instance.infer(given, id=5), single.step(given))


def test_unknown_and_repeated_sequences(tmp_path: Path) -> None:
    """A sequence that starts anew begins with the initial state."""
    with loaded(written(nets.sums(), tmp_path, "--max-sequences", "2")) as instance:
        with pytest.raises(TritonError, match="sequence 3 is not open: its first request must start it") as error:
            instance.infer({"x": numbers(1)}, id=3)
        assert error.value.code() == TritonError.NOT_FOUND
        for _ in range(3):
            check(instance.infer({"x": numbers(1)}, id=3, start=True), Single(nets.sums()).step({"x": numbers(1)}))
        assert len(instance.model._sequences) == 1


def test_one_step_sequences(tmp_path: Path) -> None:
    """An id that ends and starts in one batch of Triton: the requests have slots of their own."""
    with loaded(written(nets.sums(), tmp_path, "--max-sequences", "2")) as instance:
        requests = [instance.request({"x": numbers(1, seed)}, 3, True, True) for seed in range(2)]
        for seed, response in enumerate(instance.execute(requests)):
            check(outputs(response), Single(nets.sums()).step({"x": numbers(1, seed)}))
        assert not len(instance.model._sequences)


def test_sequences_that_triton_has_ended(tmp_path: Path) -> None:
    """Triton ends idle sequences without a word. Theirs are the slots that it gives to others."""
    with loaded(written(nets.sums(), tmp_path, "--max-sequences", "3", "--idle-seconds", "0.2")) as instance:
        sequences = instance.model._sequences
        for id in range(1, 10):  # 1 to 3 end although they are not yet idle here, the oldest first
            instance.infer({"x": numbers(1)}, id=id, start=True)
        assert set(dict(sequences.all())) == {4, 5, 6, 7, 8, 9}
        time.sleep(0.3)
        instance.infer({"x": numbers(1)}, id=10, start=True)
        assert set(dict(sequences.all())) == {10} and len(sequences) == 1


# ---- decoupled


def rows_of(steps: list[dict[str, Array]]) -> dict[str, Array]:
    """Return a request with a row for each step."""
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def test_streams(tmp_path: Path, kind: str) -> None:
    """Requests with several steps, many of them under way: a response for each step, in the order of the steps."""
    folder = written(nets.sums(), tmp_path, "--decoupled", "--max-sequences", "4")
    with loaded(folder, kind=kind) as instance:
        parts = {id: [steps(id, 3), steps(id + 1, 1), steps(id + 2, 5)] for id in range(1, 5)}
        requests = {
            (id, part): instance.request(rows_of(parts[id][part]), id, part == 0, part == 2)
            for part in range(3)
            for id in parts
        }
        for request in requests.values():
            instance.stream([request])
        singles = {id: Single(nets.sums()) for id in parts}
        for (id, part), request in requests.items():
            responses = instance.answered(request)
            assert len(responses) == len(parts[id][part])
            for response, step in zip(responses, parts[id][part]):
                check(outputs(response), singles[id].step(step))
        assert not len(instance.model._sequences)


def test_many_short_streams(tmp_path: Path) -> None:
    """More sequences than slots, since Triton does not wait for the last response before it starts others."""
    folder = written(nets.sums(), tmp_path, "--decoupled", "--max-sequences", "1", "--max-wait-ms", "0")
    with loaded(folder) as instance:
        requests = [instance.request(rows_of(steps(id, 4)), id, True, True) for id in range(1, 30)]
        for request in requests:
            instance.stream([request])
        for id, request in enumerate(requests, 1):
            single = Single(nets.sums())
            for response, step in zip(instance.answered(request), steps(id, 4), strict=True):
                check(outputs(response), single.step(step))


def test_a_stream_ends_with_an_error(tmp_path: Path) -> None:
    """Steps after a failed one do not run; the next request goes on from the last good step."""
    folder = written(nets.picky(), tmp_path, "--decoupled")
    with loaded(folder) as instance:
        given = [{"x": numbers(1, step), "length": np.array([99 if step == 2 else 3], np.int32)} for step in range(5)]
        first, second = instance.request(rows_of(given), 9, True), instance.request(rows_of(given[3:]), 9)
        instance.stream([first])
        instance.stream([second])
        single = Single(nets.picky())
        responses = instance.answered(first)
        assert [response.has_error() for response in responses] == [False, False, True]
        for response, step in zip([*responses[:2], *instance.answered(second)], [*given[:2], *given[3:]], strict=True):
            check(outputs(response), single.step(step))


def test_cancelled_streams(tmp_path: Path) -> None:
    with loaded(written(nets.sums(), tmp_path, "--decoupled")) as instance:
        request = instance.request(rows_of(steps(1, 3)), 1, True, True)
        request.sender.cancelled = True
        instance.stream([request])
        (response,) = instance.answered(request)
        error = response.error()
        assert error is not None and error.code() == TritonError.CANCELLED
        wrong = instance.request({"x": np.zeros((0, nets.SIZE), np.float32)}, 2, True, True)
        instance.stream([wrong])
        (response,) = instance.answered(wrong)
        assert response.has_error()
        assert not len(instance.model._sequences)


def test_models_without_batches(tmp_path: Path) -> None:
    """A request for each sequence, each with one step at a time."""
    folder = written(nets.sums(), tmp_path, "--no-batching")
    with loaded(folder) as instance:
        singles = [Single(nets.sums()) for _ in range(2)]
        for step in range(3):
            for id, single in enumerate(singles, 1):
                given = {"x": numbers(1, 10 * id + step)}
                check(instance.infer(given, id=id, start=step == 0), single.step(given))


# ---- memory of a card


@pytest.mark.emulator
def test_tensors_stay_on_the_card(tmp_path: Path) -> None:
    """Inputs are used where they are, and outputs are written to device memory: no bytes go over the bus."""
    folder = written(nets.sums(), tmp_path, "--device-tensors", "--device", "NVIDIA")
    with cuda.cards(1), loaded(folder, kind="GPU") as instance:
        single = Single(nets.sums())
        for step in range(5):
            host = numbers(1, step)
            array = cupy_emu.asarray(host)
            before = state.counters.h2d_bytes + state.counters.d2h_bytes
            found = instance.infer({"x": array}, id=1, start=step == 0)
            moved = state.counters.h2d_bytes + state.counters.d2h_bytes - before
            check(
                {name: cupy_emu.asnumpy(value.device_array) for name, value in found.items()}, single.step({"x": host})
            )
            assert step < 3 or not moved


# ---- loading


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"x"', '"z"', "config.pbtxt has a port 'z', but the model has x"),
        ("TYPE_FP32", "TYPE_FP16", "config.pbtxt has the type TYPE_FP16 for 'x'"),
        ("instance_group", 'parameters { key: "NO_SUCH" value { string_value: "1" } } instance_group', "NO_SUCH"),
        ("", "", "there is no model in"),
    ],
)
def test_models_that_cannot_be_loaded(old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = written(nets.sums(), tmp_path)
    if not old:
        (folder / "1/model.xml").unlink()
    config = (folder / "config.pbtxt").read_text()
    assert old in config
    (folder / "config.pbtxt").write_text(config.replace(old, new, 1))
    with pytest.raises(TritonModelException, match="model 'M': ") as error, loaded(folder):
        pass
    assert message in str(error.value)


def test_the_first_inference_is_made_while_loading(tmp_path: Path) -> None:
    """The log says how the model runs."""
    stand_in.Logger.lines.clear()
    with loaded(written(nets.sums(), tmp_path, "--max-sequences", "8")):
        assert stand_in.Logger.lines == ["model 'M': up to 16 sequences in a batch on CPU"]
