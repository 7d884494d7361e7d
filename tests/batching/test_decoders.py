"""Decoders in a SequenceBatcher: sequences of different lengths share KV caches in pages."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching.paged_request import PagedRequest
from ovgpu.ops.attention import _tensor_cores
from ovgpu.ops.fused.kv_cache import tokens_of
from tests.batching import nets
from tests.batching.test_sequences import close_to
from tests.harness.models.drive import DATA

Array = np.ndarray[Any, Any]
MODELS = ("gemma2", "gpt2", "llama", "llama_int8", "mistral", "qwen3")  # gemma2 and mistral have sliding windows
VOCABULARY = 40


def tokens(model: ov.Model, ids: Any, past: int) -> dict[str, Array]:
    """Return the inputs of a step of ``ids`` after ``past`` tokens."""
    count = len(ids)
    given = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return {port.any_name: given[port.any_name] for port in model.inputs}


def dialogue(model: ov.Model, seed: int, steps: int = 5) -> list[dict[str, Array]]:
    """Return the inputs of a prompt of random length, then of steps of one token, and one step of three."""
    rng = np.random.default_rng(seed)
    counts = [int(rng.integers(1, 9)), *[1] * steps]
    counts[3 % len(counts)] = 3
    found, past = [], 0
    for count in counts:
        found.append(tokens(model, rng.integers(1, VOCABULARY, count).tolist(), past))
        past += count
    return found


def frames(count: int, past: int, seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng([seed, past]).standard_normal((1, count, nets.SIZE)).astype(np.float32)
    return {"x": x, "mask": np.ones((1, past + count), np.float32)}


def alone(model: Any, inputs: Any) -> list[tuple[Array, ...]]:
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    return [request.infer(x).to_tuple() for x in inputs]


def nearly(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 1e-4, 1e-5 * np.abs(b).max())


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", MODELS)
def test_many_threads(name: str, device: str) -> None:
    model = ov.Core().read_model(DATA / name / "model.xml")
    data = [dialogue(model, i, 3 + i % 3) for i in range(6)]
    found: dict[int, Any] = {}

    def run(i: int) -> None:
        time.sleep(0.01 * i)
        with batcher.open() as sequence:
            found[i] = [sequence.infer(x).to_tuple() for x in data[i]]

    with ov.SequenceBatcher(model, 6, device, {"INFERENCE_PRECISION_HINT": "f32"}, max_wait_ms=5) as batcher:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i, inputs in enumerate(data):
        for got, wanted in zip(found[i], alone(model, inputs), strict=True):
            nearly(got, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_prompts_of_one_token(name: str, device: str) -> None:
    """All extents are 1 in the first step, and one is 2 in the next."""
    model = ov.Core().read_model(DATA / name / "model.xml")
    steps = [tokens(model, [5 + past], past) for past in range(3)]
    with ov.SequenceBatcher(model, 4, device, {"INFERENCE_PRECISION_HINT": "f32"}) as batcher:
        with batcher.open() as one, batcher.open() as other:
            for step, wanted in zip(steps, alone(model, steps), strict=True):
                for sequence in one, other:
                    nearly(sequence.infer(step).to_tuple(), wanted)


def test_lengths_beyond_the_capacity(device: str) -> None:
    """Caches grow while sequences are in them, and a slot that is free again begins with nothing."""
    model = nets.decoder()
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=0) as batcher:
        short, long = batcher.open(), batcher.open()
        first = [frames(2, 0), frames(1, 2), frames(3, 3)]
        second = [frames(100, 0, 1), frames(60, 100, 1), frames(200, 160, 1), frames(1, 360, 1)]
        wanted, beside = alone(model, first), alone(model, second)
        close_to(short.infer(first[0]).to_tuple(), wanted[0])
        for inputs, results in zip(second, beside):
            nearly(long.infer(inputs).to_tuple(), results)
        nearly(short.infer(first[1]).to_tuple(), wanted[1])
        assert [state.shape for state in short.state.values()] == [ov.Shape([1, 1, 3, nets.SIZE])] * 2
        long.close()
        with batcher.open() as again:
            nearly(again.infer(first[0]).to_tuple(), wanted[0])
            nearly(short.infer(first[2]).to_tuple(), wanted[2])
            again.reset()
            nearly(again.infer(first[0]).to_tuple(), wanted[0])


def test_values_of_other_sequences_do_not_matter(device: str) -> None:
    """To the last bit, even if others are not numbers; these do not stay behind in a slot."""
    model, mine = nets.decoder(), [frames(2, 0), frames(1, 2), frames(1, 3)]
    found = []
    for other in (1.0, np.nan, np.inf):
        with ov.SequenceBatcher(model, 2, device, max_wait_ms=1000) as batcher:
            first, second = batcher.open(), batcher.open()
            results = []
            for i, inputs in enumerate(mine):
                beside = frames(len(inputs["x"][0]), (0, 2, 3)[i], 5)
                future = first.submit({**beside, "x": beside["x"] * np.float32(other)})
                results.append(second.submit(inputs).result()["y"])
                future.result()
            with pytest.MonkeyPatch.context() as patch:  # steps that cannot share a batch
                patch.setattr(batcher._slots[0].gatherer, "_max_wait", 0)
                first.infer({**beside, **frames(1, 4, 6), "x": beside["x"] * np.float32(other)})
                first.close()
                with batcher.open() as third:
                    futures = third.submit(mine[0]), second.submit(frames(2, 4))
                    results += [future.result()["y"] for future in futures]
            found.append(np.concatenate(results, 1))
    assert np.isfinite(found[0]).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_states_move_between_batchers_and_requests(device: str) -> None:
    model = ov.Core().read_model(DATA / "llama" / "model.xml")
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    inputs = dialogue(model, 1, 4)
    wanted = alone(model, inputs)
    request = ov.Core().compile_model(model, device, config).create_infer_request()
    with (
        ov.SequenceBatcher(model, 4, device, config, max_wait_ms=0) as first,
        ov.SequenceBatcher(model, 4, device, config, max_wait_ms=0) as second,
    ):
        sequence, long, other = first.open(), second.open(), second.open()
        assert all(state.shape[2] == 0 for state in sequence.state.values())
        nearly(sequence.infer(inputs[0]).to_tuple(), wanted[0])
        long.infer(tokens(model, [1] * 12, 0))
        other.state = sequence.state
        nearly(other.infer(inputs[1]).to_tuple(), wanted[1])
        for state in request.query_state():
            state.state = other.state[state.name]
        nearly(request.infer(inputs[2]).to_tuple(), wanted[2])
        sequence.state = {state.name: state.state.data for state in request.query_state()}
        nearly(sequence.infer(inputs[3]).to_tuple(), wanted[3])
        state = {name: value.data for name, value in sequence.state.items()}
        name = next(iter(state))
        for wrong, message in (
            ({**state, name: state[name][:, :, :-1]}, "of one sequence has shape"),
            ({key: value for key, value in state.items() if key != name}, "no value of variable"),
            ({**state, name: state[name].astype(np.float64)}, "has type"),
        ):
            with pytest.raises(ov.Error, match=message):
                sequence.state = wrong
        nearly(sequence.infer(inputs[4]).to_tuple(), wanted[4])


def test_a_model_that_leaves_the_range_of_f16_goes_on_in_bf16(device: str) -> None:
    """Compiled anew in the middle of sequences, which keep their caches."""
    inputs = [frames(2, 0), frames(1, 2), frames(1, 3)]
    inputs[1]["x"] *= np.float32(1e6)
    wanted = alone(nets.decoder(), inputs)
    config = {"EXECUTION_MODE_HINT": "PERFORMANCE"}
    with ov.SequenceBatcher(nets.decoder(), 2, device, config, max_wait_ms=0) as batcher:
        other, sequence = batcher.open(), batcher.open()
        other.infer(frames(5, 0, 7))
        for x, results in zip(inputs, wanted):
            found = sequence.infer(x)["y"]
            assert np.abs(found - results[0]).max() <= 0.02 * np.abs(results[0]).max()
        assert np.isfinite(other.infer(frames(1, 5, 7))["y"]).all()


def test_a_mask_of_another_length_is_an_error(device: str) -> None:
    with ov.SequenceBatcher(nets.decoder(), 2, device, max_wait_ms=50) as batcher:
        sequence, other = batcher.open(), batcher.open()
        sequence.infer(frames(2, 0))
        wrong, right = sequence.submit(frames(1, 3)), other.submit(frames(1, 0))
        with pytest.raises(ov.OpError, match=r"the mask has 4 columns for 3 keys \(layer"):
            wrong.result()
        close_to(right.result().to_tuple(), alone(nets.decoder(), [frames(1, 0)])[0])
        nearly(sequence.infer(frames(1, 2)).to_tuple(), alone(nets.decoder(), [frames(2, 0), frames(1, 2)])[1])


def test_attention_without_a_mask(device: str) -> None:
    """A sequence attends to its own tokens alone, without a mask that hides others."""
    model = nets.decoder(masked=False)
    data = [[frames(2 + 20 * i, 0, i), frames(1, 2 + 20 * i, i)] for i in range(3)]
    with ov.SequenceBatcher(model, 3, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in data]
        found = [[result] for result in one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])]
        futures = [sequence.submit(inputs[1]) for sequence, inputs in zip(sequences, data)]
        for results, future in zip(found, futures):
            results.append(future.result())
    for ours, inputs in zip(found, data):
        for results, wanted in zip(ours, alone(model, inputs), strict=True):
            nearly(results.to_tuple(), wanted)


def one_after_the_other(batcher: ov.SequenceBatcher, sequences: Any, inputs: Any) -> list[Any]:
    """Return the results of steps that do not share a batch, such as prompts of different lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher._slots[0].gatherer, "_max_wait", 0)
        return [sequence.infer(x) for sequence, x in zip(sequences, inputs)]


def paged(batcher: ov.SequenceBatcher) -> PagedRequest:
    (request,) = [slots.request for slots in batcher._slots]
    assert isinstance(request, PagedRequest)
    return request


def is_empty(batcher: ov.SequenceBatcher) -> bool:
    """Return whether all pages are free, also those of batchers that share the pools."""
    request = paged(batcher)
    with request.pools.lock:  # an inference that nobody waits for may still run
        request.free_rows(range(request.rows))
        request.pools.reclaim(request)
        request.pools.commit(())
        return request.pools.allocator.free == request.pools.allocator.capacity - 1


def test_a_step_is_one_graph(emulated: str) -> None:
    """Nothing is launched beside it, until the pools or the table of pages grow."""
    from tests.emulator import state

    with ov.SequenceBatcher(nets.decoder(), 2, emulated, max_wait_ms=1000) as batcher:
        sequences = [batcher.open(), batcher.open()]
        past = [1, 4]
        one_after_the_other(batcher, sequences, [frames(count, 0) for count in past])
        for step in range(5):
            if step == 3:
                state.counters.reset()
            futures = [s.submit(frames(1, n + step)) for s, n in zip(sequences, past)]
            for future in futures:
                future.result()
        assert state.counters.graph_launches == 2 and state.counters.launches == state.counters.allocs == 0


def test_launches_of_a_step_are_those_of_one_sequence(emulated: str) -> None:
    """In 16 bits, the tokens are rotated, appended and attended to by one kernel of each layer."""
    from tests.emulator import state

    model, counts = ov.Core().read_model(DATA / "llama" / "model.xml"), []
    for count in (1, 4):
        with ov.SequenceBatcher(model, count, emulated, {"INFERENCE_PRECISION_HINT": "f16"}) as batcher:
            sequences = [batcher.open() for _ in range(count)]
            for past, ids in ((0, [5, 6]), (2, [7]), (3, [8]), (4, [9])):
                state.counters.reset()
                with batcher.together():
                    futures = [sequence.submit(tokens(model, ids, past)) for sequence in sequences]
                for future in futures:
                    future.result()
            counts.append((state.counters.graph_launches, state.counters.graph_kernels, state.counters.launches))
    assert counts[0] == counts[1] and counts[0][0] == 1


def test_a_step_reads_the_tokens_of_its_sequences(emulated: str) -> None:
    """The bytes of keys and values that attention reads are those of the lengths, rounded up to nothing else."""
    from ovgpu.runtime.plan import plan_of

    model, past = nets.decoder(), [3, 100, 40, 17]
    token = nets.SIZE * 4  # bytes of a key, and of a value
    with ov.SequenceBatcher(model, 4, emulated, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in past]
        one_after_the_other(batcher, sequences, [frames(count, 0) for count in past])
        with batcher.together():
            futures = [sequence.submit(frames(1, count)) for sequence, count in zip(sequences, past)]
        for future in futures:
            future.result()
        last = paged(batcher)._batches[4].session.last
        assert last is not None
        (attention,) = [step for step in plan_of(last).steps if step.op == "CachedAttention"]
    lengths = sum(past) + len(past)
    queries, masks = 4 * token, lengths * 4
    assert attention.bytes_read == 2 * token * lengths + masks + queries + 4 * (2 + 8) * 4  # and the table of pages


@pytest.mark.parametrize(
    ("precision", "new", "kernel", "blocks"),
    [
        ("f32", 1, "attend_split", 1),
        ("f16", 1, "attend_stream", 1),
        ("f32", 20, "attend_tiles", 1),
        ("f16", 20, "attend_stream", 2),
        ("f16", 66, "attend_mma", 2),
    ],
)
def test_caches_are_read_as_far_as_each_sequence_goes(
    precision: str, new: int, kernel: str, blocks: int, emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator counts: each block of queries reads each byte of the sequence's own tokens once, and no other byte
    of the pools. So a step of one token reads the bytes of the lengths, whatever the longest one is."""
    from tests.emulator.state import count_reads

    model, past = nets.decoder(), [3, 100, 40, 17]
    config = {"INFERENCE_PRECISION_HINT": precision}
    with ov.SequenceBatcher(model, len(past), emulated, config, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in past]
        one_after_the_other(batcher, sequences, [frames(count, 0) for count in past])
        request = paged(batcher)
        if kernel == "attend_mma":
            monkeypatch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
        for step in range(3):  # at the third, the pools have their size, and a graph runs
            pools = request.pools.arrays
            with count_reads(*pools) as found:
                with batcher.together():
                    futures = [s.submit(frames(new, n + step * new)) for s, n in zip(sequences, past)]
                for future in futures:
                    future.result()
        assert request.pools.arrays is pools
        wanted = np.zeros(found[0].counts.shape, np.uint32)
        for pages, length in request._held[: len(past)]:
            for token in range(length):
                wanted[pages[token // 16], :, token % 16] = blocks
    for reads in found:
        assert any(name.startswith(kernel) for name in reads.kernels)
        np.testing.assert_array_equal(reads.counts, wanted)


def test_a_shape_that_depends_on_the_value_of_an_input(device: str) -> None:
    """Sequences share the input k, whose value is the extent of an axis. It may differ in each step."""
    inputs = [frames(5, 0), *(frames(1, n) for n in range(5, 9))]
    plain = alone(nets.decoder(), inputs)
    with ov.SequenceBatcher(
        nets.decoder(ranked=True), 2, device, {"INFERENCE_PRECISION_HINT": "f32"}, batch_axes={"k": None}, max_wait_ms=0
    ) as batcher:
        sequence = batcher.open()
        for step, wanted, k in zip(inputs, plain, (3, 3, 3, 5, 2)):
            found = sequence.infer({**step, "k": np.int32(k)}).to_tuple()
            nearly(found, [-np.sort(-wanted[0], axis=-1)[..., :k]])


def test_memory_that_no_sequence_has_is_not_read(device: str) -> None:
    """Numbers that are none lie in free pages, and behind the tokens in the last page of each sequence."""
    model, data = nets.decoder(), [[frames(5 + 13 * i, 0, i), frames(1, 5 + 13 * i, i)] for i in range(3)]
    with ov.SequenceBatcher(model, 3, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in data]
        found = [[x] for x in one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])]
        request = paged(batcher)
        backend = request.session.backend
        kept = {(page, i) for pages, n in request._held for t in range(n) for page, i in [(pages[t // 16], t % 16)]}
        with backend.active():
            for pool in request.pools.arrays:
                values = np.array(backend.to_host(pool))
                for page in range(1, len(values)):
                    for place in range(16):
                        if (page, place) not in kept:
                            values[page, :, place] = np.nan
                pool[...] = backend.constant(values)
            backend.synchronize()
        with batcher.together():
            futures = [sequence.submit(inputs[1]) for sequence, inputs in zip(sequences, data)]
        for results, future in zip(found, futures):
            results.append(future.result())
    for ours, inputs in zip(found, data):
        for results, wanted in zip(ours, alone(model, inputs), strict=True):
            nearly(results.to_tuple(), wanted)


def test_pools_grow_by_doubling(device: str) -> None:
    model = nets.decoder()
    data = [[frames(1 + i, 0, i), *[frames(40, 1 + i + 40 * n, i) for n in range(8)]] for i in range(4)]
    wanted = [alone(model, inputs) for inputs in data]
    capacities = list[int]()
    with ov.SequenceBatcher(model, 8, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(4)]
        one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])
        for number in range(1, 9):
            with batcher.together():
                futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, data)]
            for future, results in zip(futures, wanted):
                nearly(future.result().to_tuple(), results[number])
            capacities.append(paged(batcher).pools.allocator.capacity)
        # On the host, where empty pages take no memory, half of them stay free.
        most = 256 if device == "CPU" else 128
        assert capacities[-1] == most and {*capacities} <= {2**n for n in range(4, 9)} and len({*capacities}) > 1
        assert {len(pool) for pool in paged(batcher).pools.arrays} == {most}
        for sequence in sequences:
            sequence.close()
        assert is_empty(batcher)


def test_the_host_reads_sequences_that_grow_side_by_side_without_copies() -> None:
    model = nets.decoder()
    data = [[frames(20 * i, 0, i), *[frames(1, 20 * i + n, i) for n in range(40)]] for i in (1, 2, 3)]
    with ov.SequenceBatcher(model, 4, "CPU", max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in data]
        one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])
        for number in range(1, 41):
            with batcher.together():
                futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, data)]
            for future in futures:
                future.result()
        request = paged(batcher)
        for pages, length in request._held[:3]:
            row = np.array([length, length, *pages, 0], np.int32)
            for pool in request.pools.arrays:
                tokens = tokens_of(pool, row, request._axis)
                assert tokens.shape[request._axis] == length and np.may_share_memory(tokens, pool)


def test_a_step_that_fails_after_the_caches_were_written(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens, which are no numbers, do not stay behind, nor do its pages."""
    model = nets.decoder()
    data = [[frames(16 * i, 0, i), *[frames(1, 16 * i + n, i) for n in range(2)]] for i in (1, 2)]
    wanted = [alone(model, inputs) for inputs in data]
    append = PagedRequest._append

    def fail(self: PagedRequest, *arguments: Any) -> None:
        append(self, *arguments)
        raise ov.Error("the device has failed")

    with ov.SequenceBatcher(model, 2, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(2)]
        one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(PagedRequest, "_append", fail)
                futures = [
                    s.submit({**inputs[1], "x": inputs[1]["x"] * np.float32(np.nan)})
                    for s, inputs in zip(sequences, data)
                ]
                for future in futures:
                    with pytest.raises(ov.Error, match="the device has failed"):
                        future.result()
        for number in (1, 2):
            futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, data)]
            for future, results in zip(futures, wanted):
                nearly(future.result().to_tuple(), results[number])
        request = paged(batcher)
        assert [len(held.pages) for held in request._held] == [2, 3]
        assert request.pools.allocator.free + 5 == request.pools.allocator.capacity - 1
        for sequence in sequences:
            sequence.close()
        assert is_empty(batcher)


def test_forks_share_pages(device: str) -> None:
    """A prompt is computed and held once; a fork copies the last page when it appends, and no other."""
    model = nets.decoder()
    prompt, later = frames(37, 0), [[frames(1, 37 + n, seed) for n in range(14)] for seed in range(3)]
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=1000) as batcher:
        parent = batcher.open()
        (first,) = one_after_the_other(batcher, [parent], [prompt])
        sequences = [parent, parent.fork(), parent.fork()]
        request = paged(batcher)
        assert len({held.pages for held in request._held[:3]}) == 1 and len(request._held[0].pages) == 3
        found = [[first] for _ in sequences]
        for number in range(14):
            with batcher.together():
                futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, later)]
            for results, future in zip(found, futures):
                results.append(future.result())
        pages = [held.pages for held in request._held[:3]]
        assert [len(each) for each in pages] == [4, 4, 4] and len(
            {page for each in pages for page in each}
        ) == 2 + 3 * 2
        for results, inputs in zip(found, later):
            for ours, theirs in zip(results, alone(model, [prompt, *inputs]), strict=True):
                nearly(ours.to_tuple(), theirs)
        parent.close()
        nearly(sequences[1].infer(frames(1, 51, 1)).to_tuple(), alone(model, [prompt, *later[1], frames(1, 51, 1)])[-1])
        for sequence in sequences[1:]:
            sequence.close()
        with pytest.raises(ov.Error, match="closed"):
            parent.fork()
        assert is_empty(batcher)


def test_forks_of_full_batches_and_of_beginnings(device: str) -> None:
    with ov.SequenceBatcher(nets.decoder(), 2, device, max_wait_ms=0) as batcher:
        sequence = batcher.open()
        with sequence.fork() as fork:
            nearly(fork.infer(frames(2, 0)).to_tuple(), alone(nets.decoder(), [frames(2, 0)])[0])
            with pytest.raises(ov.BatchFullError, match="all 2 sequences of the device are open"):
                fork.fork()
            assert len(batcher) == 2
        assert is_empty(batcher)


def test_a_pool_of_fixed_size(device: str) -> None:
    """A step for which there are no pages changes nothing, and runs once others have been closed."""
    model, data = (
        nets.decoder(),
        [[frames(30, 0, i), frames(1, 30, i), frames(1, 31, i), frames(1, 32, i)] for i in range(3)],
    )
    wanted = [alone(model, inputs) for inputs in data]
    with ov.SequenceBatcher(model, 4, device, max_wait_ms=1000, max_tokens=100) as batcher:
        sequences = [batcher.open() for _ in data]
        one_after_the_other(batcher, sequences, [inputs[0] for inputs in data])
        for number in (1, 2):
            with batcher.together():
                futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, data)]
            for future, results in zip(futures, wanted):
                nearly(future.result().to_tuple(), results[number])
        assert paged(batcher).pools.allocator.capacity == 8 and paged(batcher).pools.allocator.free == 1
        with batcher.together():
            futures = [s.submit(inputs[3]) for s, inputs in zip(sequences, data)]
        for future in futures:
            with pytest.raises(ov.PoolFullError, match="needs 1 more pages of 16 tokens") as caught:
                future.result()
            assert caught.value.missing == 1
        nearly(sequences[0].infer(data[0][3]).to_tuple(), wanted[0][3])
        sequences[0].close()
        with batcher.together():
            futures = [s.submit(inputs[3]) for s, inputs in zip(sequences[1:], data[1:])]
        for future, results in zip(futures, wanted[1:]):
            nearly(future.result().to_tuple(), results[3])
        with pytest.raises(ov.PoolFullError):
            batcher.open().state = {name: np.zeros((1, 1, 90, nets.SIZE), np.float32) for name in sequences[1].state}
    with pytest.raises(ValueError, match="max_tokens is 0"):
        ov.SequenceBatcher(model, 4, device, max_tokens=0)


def test_masks_of_sequences_that_differ(device: str) -> None:
    """Masks with zeros are computed for each sequence; equal ones are filled at once, before and afterwards."""
    model = nets.decoder()
    data = []
    for i in range(3):
        inputs = [frames(2 + i, 0, i), *[frames(1, 2 + i + n, i) for n in range(6)]]
        for number in (2, 3):
            inputs[number]["mask"][0, i % 2] = 0
        data.append(inputs)
    with ov.SequenceBatcher(model, 3, device, max_wait_ms=1000) as batcher:
        sequences = [batcher.open() for _ in range(3)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batcher._slots[0].gatherer, "_max_wait", 0)
            for sequence, inputs in zip(sequences, data):
                sequence.infer(inputs[0])
        found: list[list[Any]] = [[], [], []]
        for number in range(1, 7):
            with batcher.together():
                futures = [s.submit(inputs[number]) for s, inputs in zip(sequences, data)]
            for results, future in zip(found, futures):
                results.append(future.result().to_tuple())
    for results, inputs in zip(found, data):
        for ours, theirs in zip(results, alone(model, inputs)[1:], strict=True):
            nearly(ours, theirs)


def test_steps_of_the_only_decoder_run_in_the_thread_that_calls(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, threads = ov.Core().read_model(DATA / "llama" / "model.xml"), list[int]()
    infer = PagedRequest.infer_alone

    def watched(self: PagedRequest, inputs: Any) -> Any:
        threads.append(threading.get_ident())
        return infer(self, inputs)

    monkeypatch.setattr(PagedRequest, "infer_alone", watched)
    data = dialogue(model, 1, 5)
    with ov.SequenceBatcher(model, 2, device, {"INFERENCE_PRECISION_HINT": "f32"}, max_wait_ms=0) as batcher:
        sequence = batcher.open()
        for inputs, results in zip(data, alone(model, data), strict=True):
            nearly(sequence.infer(inputs).to_tuple(), results)
    assert threads == [threading.get_ident()] * (len(data) - 1)
