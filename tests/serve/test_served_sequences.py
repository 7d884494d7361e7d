"""Sequences of many clients: each has the results of a request of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu.batching.gathering import BatchRun
from ovgpu.batching.request import BatchRequest
from ovgpu.serve import engines, sequences
from ovgpu.serve.engines import Engine, EngineOptions, EngineSequence, Pace, SlotSequence, open_engine
from tests.batching.nets import SIZE, iterated, streaming_lstm, sums
from tests.harness.models.transformer import Sizes, llama
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, Inputs, Serving, fails, serving, write
from tests.serve.test_inference import echo

DECODER = Sizes(2, 32, 4, 64, 50, 64, shared=2)
STEPS = 4
X = np.ones((1, SIZE), np.float32)


def frame(sequence: int, step: int) -> Inputs:
    return {"frame": np.random.default_rng([sequence, step]).normal(size=(1, 40)).astype(np.float32)}


def tokens(sequence: int, step: int) -> Inputs:
    """A prompt of 1 to 5 tokens, then a token in each step."""
    prompt = 1 + sequence % 5
    past, count = (0, prompt) if step == 0 else (prompt + step - 1, 1)
    return {
        "input_ids": (np.arange(past, past + count, dtype=np.int64)[None] + sequence) % DECODER.vocabulary,
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count, dtype=np.int64)[None],
    }


def alone(model: ov.Model, inputs: list[Inputs], device: str = "CPU") -> list[Any]:
    """Return the first output of each step in a request of its own."""
    request = ov.Core().compile_model(model, device).create_infer_request()
    beams = {"beam_idx": np.zeros(1, np.int32)} if len(model.inputs) > 1 else {}
    return [np.array(request.infer({**given, **beams})[0]) for given in inputs]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, streaming_lstm(), "lstm")
    write(folder, llama(1, DECODER).ir, "decoder")
    write(folder, sums(), "sums")
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with serving(repository, engine={"max_sequences": 8}) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, server: Serving) -> Iterator[Client]:
    with server.client(request.param) as found:
        yield found


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run a function in threads, and raise its first error."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if errors:
        raise errors[0]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("name", "inputs"), [("lstm", frame), ("decoder", tokens)], ids=["lstm", "decoder"])
def test_64_sequences_side_by_side(
    repository: Path, device: str, interface: str, name: str, inputs: Callable[[int, int], Inputs]
) -> None:
    """A batch gives what a request of its own does, up to the order of sums."""
    count = 64
    model = ov.Core().read_model(repository / name / "1" / "model.xml")
    found: list[list[Any]] = [[] for _ in range(count)]
    with serving(repository / name / "1", device, {"max_wait_ms": 20}, name=name) as server:
        barrier = threading.Barrier(count)

        def run(number: int) -> None:
            with server.client(interface) as client:
                barrier.wait(SECONDS)
                for step in range(STEPS):
                    outputs = client.infer(
                        name,
                        inputs(number, step),
                        sequence_id=number + 1,
                        sequence_start=step == 0,
                        sequence_end=step == STEPS - 1,
                    )
                    found[number].append(next(iter(outputs.values())))

        in_threads(count, run)
        with server.client("REST") as client:
            (statistics,) = client.client.get_inference_statistics(name)["model_stats"]
    assert statistics["inference_count"] == count * STEPS
    assert statistics["execution_count"] < count * STEPS / 4  # they did share batches
    for number in range(count):
        wanted = alone(model, [inputs(number, step) for step in range(STEPS)])
        for ours, theirs in zip(found[number], wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5)


def test_a_sequence_starts_goes_on_and_ends(client: Client) -> None:
    x = np.ones((1, SIZE), np.float32)
    for _ in range(2):  # the second one begins with the initial state again
        counts = [
            client.infer("sums", {"x": x}, sequence_id=7, sequence_start=i == 0, sequence_end=i == 2)["steps"]
            for i in range(3)
        ]
        assert [int(n[0]) for n in counts] == [1, 2, 3]
        text = fails("NOT_FOUND", client.infer, "sums", {"x": x}, sequence_id=7)
        assert "sequence 7 of model 'sums' is not open" in text


def test_a_start_begins_anew(client: Client) -> None:
    x = np.ones((1, SIZE), np.float32)
    found = [
        int(
            client.infer("sums", {"x": x}, sequence_id="restarted", sequence_start=i in (0, 3), sequence_end=i == 5)[
                "steps"
            ][0]
        )
        for i in range(6)
    ]
    assert found == [1, 2, 3, 1, 2, 3]


def test_one_inference_can_be_a_sequence(client: Client) -> None:
    x = np.ones((1, SIZE), np.float32)
    for _ in range(20):  # more than there are slots
        assert client.infer("sums", {"x": x}, sequence_id=9, sequence_start=True, sequence_end=True)["steps"][0] == 1


def test_ids_are_numbers_or_strings(client: Client) -> None:
    """A number and its digits are two sequences."""
    x = np.ones((1, SIZE), np.float32)
    for id, count in ((5, 1), ("5", 1), (5, 2), ("5", 2), (2**63 - 1, 1), ('\u00fc "x"', 1)):
        found = client.infer("sums", {"x": x}, sequence_id=id, sequence_start=count == 1)
        assert int(found["steps"][0]) == count
    for id in (5, "5", 2**63 - 1, '\u00fc "x"'):
        client.infer("sums", {"x": x}, sequence_id=id, sequence_end=True)


def test_an_inference_without_a_sequence_is_refused(client: Client) -> None:
    assert "sequence_id" in fails("INVALID_ARGUMENT", client.infer, "sums", {"x": np.ones((1, SIZE), np.float32)})


def test_a_step_that_fails_leaves_the_state(client: Client) -> None:
    x = np.ones((1, SIZE), np.float32)
    steps = [client.infer("sums", {"x": x}, sequence_id=3, sequence_start=True)]
    fails("INVALID_ARGUMENT", client.infer, "sums", {"x": np.ones((1, SIZE + 1), np.float32)}, sequence_id=3)
    fails("INVALID_ARGUMENT", client.infer, "sums", {"x": x, "z": x}, sequence_id=3)
    steps.append(client.infer("sums", {"x": x}, sequence_id=3, sequence_end=True))
    assert [int(step["steps"][0]) for step in steps] == [1, 2]
    # A start that fails does not open a sequence, nor does it keep a slot.
    for _ in range(20):
        fails("INVALID_ARGUMENT", client.infer, "sums", {"x": x[:, 1:]}, sequence_id=4, sequence_start=True)
    fails("NOT_FOUND", client.infer, "sums", {"x": x}, sequence_id=4)


def test_too_many_sequences_are_refused(client: Client) -> None:
    x = np.ones((1, SIZE), np.float32)
    for id in range(1, 9):
        client.infer("sums", {"x": x}, sequence_id=id, sequence_start=True)
    assert "all 8 sequences are open" in fails(
        "RESOURCE_EXHAUSTED", client.infer, "sums", {"x": x}, sequence_id=9, sequence_start=True
    )
    client.infer("sums", {"x": x}, sequence_id=1, sequence_end=True)
    assert client.infer("sums", {"x": x}, sequence_id=9, sequence_start=True)["steps"][0] == 1
    for id in range(2, 10):
        assert client.infer("sums", {"x": x}, sequence_id=id, sequence_end=True)["steps"][0] == 2


def controls(id: int | None, control: int | None) -> Inputs:
    """Return the inputs with which OpenVINO Model Server has sequences."""
    found: Inputs = {"x": np.ones((1, SIZE), np.float32)}
    if id is not None:
        found["sequence_id"] = np.array([id], np.uint64)
    if control is not None:
        found["sequence_control_input"] = np.array([control], np.uint32)
    return found


def test_control_inputs_of_openvino_model_server(client: Client) -> None:
    for step, control in enumerate((1, 0, None, 2)):
        found = client.infer("sums", controls(12, control))
        assert int(found["steps"][0]) == step + 1
        assert found["sequence_id"].tolist() == [12]
        assert found["sequence_id"].dtype == np.uint64
    fails("NOT_FOUND", client.infer, "sums", controls(12, 0))
    fails("NOT_FOUND", client.infer, "sums", controls(12, 2))
    fails("INVALID_ARGUMENT", client.infer, "sums", controls(12, 3))
    fails("INVALID_ARGUMENT", client.infer, "sums", controls(None, 0))
    fails("INVALID_ARGUMENT", client.infer, "sums", {**controls(1, 1), "sequence_id": np.zeros(2, np.uint64)})
    fails("INVALID_ARGUMENT", client.infer, "sums", {**controls(1, 1), "sequence_id": np.zeros(1, np.float32)})


def test_control_inputs_may_leave_the_id_to_the_server(client: Client) -> None:
    ids = [int(client.infer("sums", controls(id, 1))["sequence_id"][0]) for id in (0, None, 0)]
    assert len(set(ids)) == 3
    fails("ALREADY_EXISTS", client.infer, "sums", controls(ids[0], 1))
    for id in ids:
        assert int(client.infer("sums", controls(id, 2))["steps"][0]) == 2


def test_steps_of_a_stream_run_in_their_order(server: Serving) -> None:
    """A client need not wait for a step before it sends the next."""
    import queue

    answers = queue.Queue[Any]()
    x = np.ones((1, SIZE), np.float32)
    with server.client("gRPC") as client:
        client.client.start_stream(lambda result, error: answers.put(error or result))
        for step in range(40):
            for id in (1, 2):
                client.client.async_stream_infer(
                    "sums",
                    client.inputs({"x": id * x}),
                    sequence_id=id,
                    sequence_start=step % 20 == 0,
                    sequence_end=step % 20 == 19,
                )
        found = [answers.get(timeout=SECONDS) for _ in range(80)]
        client.client.stop_stream()
    for id in (1, 2):
        assert [int(result.as_numpy("steps")[0]) for result in found[id - 1 :: 2]] == [*range(1, 21)] * 2


def test_idle_sequences_end(repository: Path) -> None:
    x = np.ones((1, SIZE), np.float32)
    with serving(repository, idle_seconds=0.3) as server, server.client("gRPC") as client:
        client.infer("sums", {"x": x}, sequence_id=1, sequence_start=True)
        ended = threading.Event()
        for _ in range(100):
            if len(server.server.service.sequences) == 0:
                break
            ended.wait(0.1)
        fails("NOT_FOUND", client.infer, "sums", {"x": x}, sequence_id=1)


def test_models_without_a_batch_have_a_request_for_each_sequence(tmp_path: Path, device: str) -> None:
    """`iterated` is batched by default; without batches, each sequence has a request."""
    write(tmp_path, iterated(), "m")
    model = ov.Core().read_model(tmp_path / "m" / "1" / "model.xml")
    name = min(model.input(0).get_names())
    shape = [d.get_length() if d.is_static else 3 for d in model.input(0).get_partial_shape()]
    inputs = [{name: np.random.default_rng(i).normal(size=shape).astype(np.float32)} for i in range(4)]
    with serving(tmp_path, device, {"batching": False, "max_sequences": 2}) as server:
        with server.client("gRPC") as client:
            found = [
                next(iter(client.infer("m", given, sequence_id=id, sequence_start=i == 0).values()))
                for i, given in enumerate(inputs)
                for id in (1, 2)
            ]
            fails("RESOURCE_EXHAUSTED", client.infer, "m", inputs[0], sequence_id=3, sequence_start=True)
    for ours, theirs in zip(found[::2], alone(model, inputs, device), strict=True):
        assert np.array_equal(ours, theirs)
    assert all(np.array_equal(a, b) for a, b in zip(found[::2], found[1::2]))


def test_control_inputs_of_a_model_without_states_are_unknown(tmp_path: Path) -> None:
    write(tmp_path, echo("f32"), "echo")
    inputs = {"x": np.ones((1, 3), np.float32), "sequence_id": np.ones(1, np.uint64)}
    with serving(tmp_path) as server, server.client("gRPC") as client:
        assert "has no input 'sequence_id'" in fails("INVALID_ARGUMENT", client.infer, "echo", inputs)
        del inputs["sequence_id"]
        assert client.infer("echo", inputs, sequence_id=1, sequence_start=True)["y"].shape == (1, 3)


# ---- steps with a number, which can be repeated


def numbered(client: Client, number: int, value: float = 1, id: Any = 81, **flags: bool) -> int:
    """Run a step with a number, and return the number of steps that the model has counted."""
    x = np.full((1, SIZE), value, np.float32)
    found = client.infer("sums", {"x": x}, sequence_id=id, parameters={"sequence_step": number}, **flags)
    return int(found["steps"][0])


def test_a_repeated_step_is_answered_again(client: Client) -> None:
    for number in (1, 1, 2, 2, 2, 3):
        assert numbered(client, number, sequence_start=number == 1) == number
    for number in (5, 1):
        found = fails("ALREADY_EXISTS", numbered, client, number)
        assert f"step {number} of sequence 81 cannot follow step 3" in found
    assert "step 3 of sequence 81 has run with other inputs" in fails("ALREADY_EXISTS", numbered, client, 3, 2.0)
    assert int(client.infer("sums", {"x": X}, sequence_id=81)["steps"][0]) == 4  # without a number, it counts as well
    fails("ALREADY_EXISTS", numbered, client, 4)  # its outputs were not kept
    for _ in range(3):  # the answer to the last step may be lost, too
        assert numbered(client, 5, sequence_end=True) == 5
    fails("NOT_FOUND", numbered, client, 6)
    fails("ALREADY_EXISTS", numbered, client, 5, 3.0)


def test_other_clients_do_not_wait_for_digests(
    monkeypatch: pytest.MonkeyPatch, server: Serving, client: Client
) -> None:
    """The digest of large inputs takes long, and the event loop serves all clients."""
    digest, found = sequences.digest_of, set[int]()

    def watched(inputs: Any) -> bytes:
        found.add(threading.get_ident())
        return digest(inputs)

    monkeypatch.setattr(sequences, "digest_of", watched)
    monkeypatch.setattr(sequences, "LARGE", 0)
    assert numbered(client, 1, sequence_start=True, sequence_end=True) == 1
    assert found and server.thread.ident not in found


def test_a_start_with_other_inputs_begins_anew(client: Client) -> None:
    assert numbered(client, 1, sequence_start=True) == numbered(client, 1, 2.0, sequence_start=True) == 1
    assert numbered(client, 2, 2.0, sequence_end=True) == 2
    assert numbered(client, 1, sequence_start=True, sequence_end=True) == 1


@pytest.mark.parametrize("number", [0, -1, True, "2", 1.5])
def test_numbers_of_steps_are_integers(number: Any, client: Client) -> None:
    found = fails("INVALID_ARGUMENT", numbered, client, number, sequence_start=True)
    assert "sequence_step" in found and "is no number from 1 on" in found


def test_a_step_that_nobody_waits_for_counts(repository: Path) -> None:
    """The client gives up while its step runs, and repeats it: it runs once."""
    entered, leave = threading.Event(), threading.Event()

    pool = ThreadPoolExecutor(1)

    def opener(path: Path, observer: Any) -> Engine:
        engine = open_engine(path, EngineOptions("CPU"), observer)
        open_sequence = engine.open

        def slow() -> EngineSequence:
            sequence = open_sequence()
            submit = sequence.submit

            def run(inputs: Any) -> Any:
                entered.set()
                leave.wait(SECONDS)
                return submit(inputs).result()

            sequence.submit = lambda inputs: pool.submit(run, inputs)  # type: ignore[method-assign]
            return sequence

        engine.open = slow  # type: ignore[method-assign]
        return engine

    with serving(repository / "sums" / "1", opener=opener, name="sums") as server, server.client("gRPC") as client:
        leave.set()
        assert numbered(client, 1, sequence_start=True) == 1
        leave.clear()
        entered.clear()
        with pytest.raises(InferenceServerException, match=r"(?i)deadline"):  # the client's or the server's
            client.client.infer(
                "sums",
                client.inputs({"x": X}),
                sequence_id=81,
                parameters={"sequence_step": 2},
                client_timeout=0.2,
            )
        assert entered.wait(SECONDS)
        again = threading.Timer(0.2, leave.set)
        again.start()
        assert numbered(client, 2) == 2
        assert numbered(client, 3) == 3


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("batching", [True, False])
def test_decoders_need_no_beams(repository: Path, interface: str, batching: bool) -> None:
    """Without them, each step continues its own sequence, in a batch and in a request of its own."""
    folder = repository / "decoder" / "1"
    wanted = alone(ov.Core().read_model(folder / "model.xml"), [tokens(3, step) for step in range(STEPS)])
    beams = {"beam_idx": np.zeros(1, np.int32)}
    with serving(folder, engine={"batching": batching}, name="decoder") as server, server.client(interface) as client:
        for step in range(STEPS):
            options = {"sequence_id": 1, "sequence_start": step == 0}
            given = tokens(3, step) | (beams if step == 2 else {})
            np.testing.assert_allclose(client.infer("decoder", given, **options)["logits"], wanted[step], 2e-4, 2e-5)
        with server.client("REST") as rest:
            config = rest.client.get_model_config("decoder")
    assert [port["name"] for port in config["input"] if port.get("optional")] == ["beam_idx"]


class Slot:
    """Sequence of a batch that notes how its steps are run."""

    def __init__(self, alone: bool, error: Exception | None = None) -> None:
        self.alone, self.error, self.ways = alone, error, list[str]()

    def try_infer(self, inputs: Any) -> Any:
        self.ways.append("tried")
        if self.error is not None:
            raise self.error
        return "outputs" if self.alone else None

    def submit(self, inputs: Any) -> Any:
        self.ways.append("submitted")
        return Future[Any]()


def test_quick_steps_of_the_only_sequence_run_at_once() -> None:
    """A step whose inputs have other shapes than those of the last one may take long."""
    runs = list[BatchRun]()
    small, large = np.zeros(4, np.float32), np.zeros(9, np.float32)
    for seconds, values, alone, wanted in (
        (0.0001, (small, small, [1.0, 2.0, 3.0, 4.0], large), True, ["submitted", "tried", "tried", "submitted"]),
        (0.0001, (small, small), False, ["submitted", "tried", "submitted"]),
        (0.001, (small, small), True, ["submitted", "submitted"]),
    ):
        slot, pace = Slot(alone), Pace(runs.append)
        pace(BatchRun(1, 1, (0.0,), seconds))
        sequence = SlotSequence(slot, pace)  # type: ignore[arg-type]
        futures = [sequence.submit({0: value}) for value in values]
        assert slot.ways == wanted
        assert [future.done() for future in futures] == [alone and way == "tried" for way in wanted][: len(values)]
    assert len(runs) == 3
    slot = Slot(True, ValueError("wrong"))
    pace.seconds = 0.0
    failed = SlotSequence(slot, pace).submit({0: small})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wrong"):
        failed.result()


def test_steps_of_the_only_sequence_run_on_the_thread_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, infer = list[int](), BatchRequest.infer_alone

    def watched(self: BatchRequest, inputs: Any) -> Any:
        threads.append(threading.get_ident())
        return infer(self, inputs)

    monkeypatch.setattr(BatchRequest, "infer_alone", watched)
    monkeypatch.setattr(engines, "QUICK_SECONDS", 60)
    write(tmp_path, sums(), "sums")
    with serving(tmp_path) as server:
        for interface in INTERFACES:
            with server.client(interface) as client:
                for step in range(4):
                    flags = {"sequence_start": step == 0, "sequence_end": step == 3}
                    result = client.infer("sums", {"x": X}, sequence_id=7, **flags)
                    assert result["steps"].item() == step + 1
        assert threads == [server.thread.ident] * 6
