"""Models in Triton Inference Server itself, on the CPU, with its own clients. It is left out where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu import cli
from tests.batching import nets
from tests.batching.test_dynamic_batcher import numbers, perceptron
from tests.harness.ir import Net
from tests.harness.servers import triton as server
from tests.harness.servers.serving import INTERFACES, Client
from tests.integrations.triton.test_model import Single, check, dense, rows_of, steps

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(server.missing()), reason=server.missing()),
    pytest.mark.timeout(300),
]

MODELS = {
    "dense": (dense, ()),
    "sums": (nets.sums, ("--max-sequences", "64")),
    "brief": (nets.sums, ("--max-sequences", "2", "--idle-seconds", "0.5")),
    "lstm": (nets.streaming_lstm, ("--no-batching",)),
    "stream": (nets.sums, ("--decoupled", "--max-sequences", "4")),
    "picky": (nets.picky, ()),
    "perceptron": (lambda: perceptron(-1), ()),
}


def types() -> ov.Model:
    """Relu of a bf16 input, not of flags, and numbers as i64; all of any length."""
    net = Net("types")
    for op, kind, x, y in (
        ("Relu", "bf16", "x", "y"),
        ("LogicalNot", "boolean", "flags", "no"),
        ("Negative", "i64", "n", "minus"),
    ):
        net.result(net.layer(op, "opset1", [net.parameter(kind, (-1, -1), x)], names=[y]))
    return nets.model(net)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve the folders that ``ovgpu triton`` wrote. Yield the address by interface."""
    folder = tmp_path_factory.mktemp("triton")
    for name, (make, options) in {**MODELS, "types": (types, ())}.items():
        ov.save_model(make(), folder / f"{name}.xml", compress_to_fp16=False)
        assert not cli.main(["triton", str(folder / "models"), str(folder / f"{name}.xml"), *options])
    with server.triton_server(folder / "models", folder) as (http, grpc):
        yield {"REST": http, "gRPC": grpc}


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, addresses: dict[str, str]) -> Iterator[Client]:
    with Client(request.param, addresses[request.param]) as client:
        yield client


def test_batches(client: Client, addresses: dict[str, str]) -> None:
    """Requests of many clients, of one row and of several."""

    def run(number: int) -> None:
        with Client(client.interface, addresses[client.interface]) as own:
            for rows in (1, 3):
                given = {"x": numbers(rows, number)}
                check(own.infer("dense", given), Single(dense()).step(given))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(48)))


def test_types_and_shapes(client: Client) -> None:
    """Requests of different lengths, also without elements. Values of bf16 go through DLPack."""
    for rows, length in ((1, 3), (2, 1), (1, 0)):
        n = np.arange(rows * length).reshape(rows, length) - 1
        x = n.astype(bfloat16)
        found = client.infer("types", {"x": x, "flags": n > 0, "n": n})
        assert found["y"].dtype == bfloat16
        wanted = {"y": np.maximum(x, bfloat16(0)), "no": n <= 0, "minus": -n}
        check({name: found[name] for name in wanted}, list(wanted.values()))


def test_a_request_without_batches(client: Client) -> None:
    given = {"x": numbers(3), "offset": np.array([2], np.float32)}
    check(client.infer("perceptron", given), Single(perceptron(-1)).step({**given, "offset": np.float32(2)}))


def test_sequences_of_many_clients(client: Client, addresses: dict[str, str]) -> None:
    """64 sequences at a time, with numbers and strings as ids."""

    def run(number: int) -> None:
        first = 1000 if client.interface == "REST" else 2000
        id = first + number if number % 2 else f"{client.interface}-{number}"
        single = Single(nets.sums())
        with Client(client.interface, addresses[client.interface]) as own:
            for step, given in enumerate(steps(number, 12)):
                found = own.infer("sums", given, sequence_id=id, sequence_start=not step, sequence_end=step == 11)
                y, count = single.step(given)
                check({name: found[name] for name in ("y", "steps")}, [y, count[:, None]])

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(run, range(128)))


def test_requests_for_each_sequence(client: Client) -> None:
    """Frames of a streaming LSTM; two sequences in turns."""
    model = nets.streaming_lstm()
    name = next(iter(ov.Core().compile_model(model, "CPU").inputs[0].get_names()))
    singles = [Single(model), Single(model)]
    for step in range(4):
        for id, single in enumerate(singles, 1):
            given = {name: np.random.default_rng(10 * id + step).standard_normal((1, 40)).astype(np.float32)}
            found = client.infer("lstm", given, sequence_id=id, sequence_start=not step, sequence_end=step == 3)
            check(found, single.step(given))


def test_idle_sequences_end(client: Client) -> None:
    """Their slots are free for others, again and again; and a sequence that goes on is told to start."""
    offset = 0 if client.interface == "REST" else 100
    for id in range(1, 7):
        found = client.infer("brief", {"x": numbers(1)}, sequence_id=offset + id, sequence_start=True)
        assert found["steps"].tolist() == [[1]]
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        client.infer("brief", {"x": numbers(1)}, sequence_id=offset + 1)


def test_errors(client: Client) -> None:
    """A failed step leaves the state, and the message has no path."""
    wrong, right = ({"x": numbers(1), "length": np.array([[length]], np.int32)} for length in (99, 3))
    single = Single(nets.picky())
    for step in range(3):
        with pytest.raises(InferenceServerException, match="reverse") as error:
            client.infer("picky", wrong, sequence_id=8, sequence_start=not step)
        assert "/" not in str(error.value)
        found = client.infer("picky", right, sequence_id=8, sequence_end=step == 2)
        check(found, single.step({**right, "length": np.array([3], np.int32)}))


def test_streams(addresses: dict[str, str]) -> None:
    """Each step of a request is answered by itself; sequences share a stream of gRPC."""
    parts = {id: [steps(id, 3), steps(id + 50, 1), steps(id + 90, 4)] for id in range(1, 9)}
    answers: SimpleQueue[Any] = SimpleQueue()
    with Client("gRPC", addresses["gRPC"]) as client:
        client.client.start_stream(lambda result, error: answers.put((result, error)))
        for part in range(3):
            for id, given in parts.items():
                client.client.async_stream_infer(
                    "stream",
                    client.inputs(rows_of(given[part])),
                    request_id=f"{id}-{part}",
                    sequence_id=id,
                    sequence_start=part == 0,
                    sequence_end=part == 2,
                )
        found: dict[str, list[Any]] = {}
        for _ in range(8 * 8):
            result, error = answers.get(timeout=60)
            assert error is None
            found.setdefault(result.get_response().id, []).append(client.outputs(result))
        client.client.stop_stream()
    for id, given in parts.items():
        single = Single(nets.sums())
        for part, rows in enumerate(given):
            for outputs, step in zip(found[f"{id}-{part}"], rows, strict=True):
                check(outputs, single.step(step))


def test_configuration(addresses: dict[str, str]) -> None:
    """Triton takes the configuration as it was written."""
    with grpc_client.InferenceServerClient(addresses["gRPC"]) as client:
        config = client.get_model_config("sums").config
        assert config.max_batch_size == config.sequence_batching.oldest.max_candidate_sequences == 64
        assert client.get_model_config("stream").config.model_transaction_policy.decoupled
        metadata = client.get_model_metadata("types")
        assert {port.name: (port.datatype, list(port.shape)) for port in metadata.inputs} == {
            "x": ("BF16", [-1, -1]),
            "flags": ("BOOL", [-1, -1]),
            "n": ("INT64", [-1, -1]),
        }
