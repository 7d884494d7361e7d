"""Steps of few sequences of a large batch run in a smaller batch, and prompts in a batch of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching.gathering import BatchRun
from tests.batching import nets
from tests.batching.test_decoders import alone as decoded
from tests.batching.test_decoders import frames, nearly
from tests.batching.test_sequences import alone, close_to, steps

SLOTS = 16


def states(sequence: ov.BatchedSequence) -> dict[str, bytes]:
    return {name: tensor.data.tobytes() for name, tensor in sequence.state.items()}


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    "make", [nets.streaming_lstm, nets.sums, nets.first_frame, nets.time_major], ids=lambda make: make.__name__
)
def test_few_of_many_sequences(make: Any, device: str) -> None:
    """They have the results of requests of their own, and the others keep their states to the last bit."""
    model, runs = make(), list[BatchRun]()
    data = [steps(model, 4, i) for i in range(SLOTS)]
    wanted = [alone(model, x) for x in data]
    with ov.SequenceBatcher(model, SLOTS, device, max_wait_ms=50, observer=runs.append) as batcher:
        sequences = [batcher.open() for _ in range(SLOTS)]
        few = (3, 9)
        later = [i for i in range(SLOTS) if i not in few]
        for number in range(3):  # the first steps of these two, before the others begin
            for future, i in [(sequences[i].submit(data[i][number]), i) for i in few]:
                close_to(future.result().to_tuple(), wanted[i][number])
        assert {run.slots for run in runs if run.rows == 2} == {2}
        for future, i in [(sequences[i].submit(data[i][0]), i) for i in later]:
            close_to(future.result().to_tuple(), wanted[i][0])
        before = {i: states(sequences[i]) for i in later}
        close_to(sequences[9].infer(data[9][3]).to_tuple(), wanted[9][3])
        assert runs[-1].slots == 1
        assert {i: states(sequences[i]) for i in later} == before
        for number in range(1, 4):
            for future, i in [(sequences[i].submit(data[i][number]), i) for i in later]:
                close_to(future.result().to_tuple(), wanted[i][number])


def test_a_step_at_fault_in_a_small_batch_changes_nothing() -> None:
    good = {"x": np.ones((1, nets.SIZE), np.float32), "length": np.array([3], np.int32)}
    bad = {**good, "length": np.array([nets.SIZE + 1], np.int32)}
    with ov.SequenceBatcher(nets.picky(), SLOTS, "CPU", max_wait_ms=0) as batcher:
        sequences = [batcher.open() for _ in range(SLOTS)]
        for sequence in sequences:
            sequence.infer(good)
        before = [states(sequence) for sequence in sequences]
        with pytest.raises(ov.OpError, match="ReverseSequence"):
            sequences[5].infer(bad)
        assert [states(sequence) for sequence in sequences] == before


def test_a_prompt_is_not_computed_for_all_slots(device: str) -> None:
    runs: list[BatchRun] = []
    prompts = [5, 1, 3, 7, 2, 6, 4, 8]
    inputs = [
        [frames(prompt, 0, i), frames(1, prompt, i), frames(2, prompt + 1, i)] for i, prompt in enumerate(prompts)
    ]
    with ov.SequenceBatcher(nets.decoder(), 8, device, max_wait_ms=50, observer=runs.append) as batcher:
        sequences = [batcher.open() for _ in prompts]
        found = [[sequence.infer(given[0])] for sequence, given in zip(sequences, inputs)]
        assert {run.slots for run in runs} == {1}
        for number in (1, 2):
            futures = [sequence.submit(given[number]) for sequence, given in zip(sequences, inputs)]
            for results, future in zip(found, futures):
                results.append(future.result())
        assert runs[-1].slots == 8
        sequences[2].reset()  # begins anew beside the others
        found[2].append(sequences[2].infer(inputs[2][0]))
        assert runs[-1].slots == 1
        for i in (2, 3):
            next_step = frames(1, 3 if i == 2 else prompts[i] + 3, i)
            found[i].append(sequences[i].infer(next_step))
            inputs[i] += [inputs[i][0], next_step] if i == 2 else [next_step]
    for i, results in enumerate(found):
        given = inputs[i]
        wanted = (
            decoded(nets.decoder(), given[:3]) + decoded(nets.decoder(), given[3:])
            if i == 2
            else decoded(nets.decoder(), given)
        )
        for ours, theirs in zip(results, wanted, strict=True):
            nearly(ours.to_tuple(), theirs)


def test_a_prompt_that_leaves_the_range_of_f16(device: str) -> None:
    """The small batch is compiled anew; the states of the others are converted, and their sequences go on."""
    config = {"EXECUTION_MODE_HINT": "PERFORMANCE"}
    large = frames(3, 0)
    large["x"] *= np.float32(1e6)
    usual = [frames(4, 0, 7), frames(1, 4, 7)]
    with ov.SequenceBatcher(nets.decoder(), 4, device, config, max_wait_ms=0) as batcher:
        sequences = [batcher.open() for _ in range(4)]
        found = [sequences[0].infer(usual[0])["y"]]
        assert np.isfinite(sequences[1].infer(large)["y"]).all()
        found.append(sequences[0].infer(usual[1])["y"])
        assert np.isfinite(sequences[1].infer(frames(1, 3))["y"]).all()
    for ours, (theirs,) in zip(found, decoded(nets.decoder(), usual), strict=True):
        assert np.abs(ours - theirs).max() <= 0.02 * np.abs(theirs).max()
