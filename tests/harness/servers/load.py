"""Load on a server by tritonclient: sequences and single inferences, which are due at times that are planned.

    python -m tests.harness.servers.load --url 127.0.0.1:8001 --interface gRPC --model lstm --sequences 64 --steps 50 \\
        --rate 500

prints a summary as JSON. With a rate the loop is open: inferences are due at the times of a Poisson process, however
long the answers take, and latency counts from the due time, so that time in queues is part of it. A step of a sequence
is sent when it is due and the step before it has been answered. Without a rate the loop is closed: each client sends
its next inference when it has the last answer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

Inputs = Mapping[str, Any]
Feeds = Callable[[int, int], Inputs]
"""Function from the number of a sequence and of a step to the inputs."""

OK = "OK"
FRAMES = 256  # different values of an input
DECODER_INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")


@dataclass(frozen=True)
class Load:
    """Inferences of a model: ``steps`` for each of ``sequences``, of which the first step has the number ``first``.

    ``rate`` is the number of inferences per second, of all sequences together; None means a closed loop. Step 0 starts
    a sequence, and the last step ends it if ``ends``. Sequences have the ids ``first_id`` and up. If the model is not
    ``stateful``, inferences belong to no sequence, and with a rate do not wait for each other. Outputs are recorded of
    the inferences that ``keep`` is true for. ``timeout`` is in seconds. After an error, a sequence goes on with its
    next step unless ``stop_at_error``.
    """

    model: str
    inputs: Feeds
    sequences: int = 64
    steps: int = 50
    rate: float | None = None
    stateful: bool = True
    first: int = 0
    ends: bool = True
    first_id: int = 1
    keep: Callable[[int, int], bool] = lambda sequence, step: False
    timeout: float = 60.0
    stop_at_error: bool = False
    seed: int = 0

    def due(self) -> Any:
        """Return the due times in seconds, of shape [steps, sequences]. Sequences take turns, at random intervals.

        Times of a Poisson process that are known to be so many in so much time are uniformly distributed.
        """
        count = self.steps * self.sequences
        if self.rate is None:
            return np.zeros((self.steps, self.sequences))
        times = np.random.default_rng(self.seed).uniform(0, count / self.rate, count)
        return np.sort(times).reshape(self.steps, self.sequences)


@dataclass
class Record:
    """An inference: when it was due, could be sent, was sent and was answered, in seconds since the load began.

    In a closed loop it is due when it can be sent. ``status`` is OK, a status of HTTP (such as 404) or gRPC (such as
    NOT_FOUND), or the name of an exception, and ``error`` its text.
    """

    sequence: int
    step: int
    due: float
    possible: float
    start: float
    end: float = 0.0
    status: str = OK
    error: str = ""
    outputs: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def latency(self) -> float:
        """Seconds from the due time to the answer."""
        return self.end - self.due


class Client:
    """tritonclient for asyncio, through REST, gRPC, or one stream of gRPC for all inferences (ModelStreamInfer)."""

    def __init__(self, interface: str, url: str, connections: int = 64, timeout: float = 60.0) -> None:
        self.rest = interface == "REST"
        self.triton: Any = importlib.import_module(f"tritonclient.{'http' if self.rest else 'grpc'}.aio")
        self._timeout = {} if self.rest else {"client_timeout": timeout}
        options = {"conn_limit": connections, "conn_timeout": timeout} if self.rest else {}
        self.client = self.triton.InferenceServerClient(url, **options)
        self._streams, self._seconds = interface == "stream", timeout
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        if self._streams:
            self._stream = Stream(self.client, self._seconds)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._stream:
            await self._stream.close()
        await self.client.close()

    def inputs(self, arrays: Inputs) -> list[Any]:
        """Return the inputs of an inference from arrays by name."""
        found = []
        for name, array in arrays.items():
            found.append(self.triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            found[-1].set_data_from_numpy(array)
        return found

    async def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
        """Run an inference, and return its result."""
        if self._stream:
            return await self._stream.infer(model, inputs, **options)
        return await self.client.infer(model, inputs, **options, **self._timeout)

    async def metadata(self, model: str) -> dict[str, Any]:
        """Return the metadata of a model."""
        found: dict[str, Any] = await self.client.get_model_metadata(model, **({} if self.rest else {"as_json": True}))
        return found

    def outputs(self, result: Any) -> dict[str, Any]:
        """Return the outputs in a result by name."""
        response = result.get_response()
        names = [x["name"] for x in response["outputs"]] if self.rest else [x.name for x in response.outputs]
        return {name: result.as_numpy(name) for name in names}


class Stream:
    """A stream of inferences, whose results are matched by the ids of their requests.

    An error ends the stream, since tritonclient does not say to which request it belongs: all inferences that wait
    raise it, and so do later ones.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self._timeout = timeout
        self._requests: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._error: Exception | None = None
        self._reader = asyncio.create_task(self._read(client.stream_infer(self._sent())))

    async def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
        """Run an inference, and return its result."""
        if self._error:
            raise self._error
        number = str(next(self._numbers))
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait({"model_name": model, "inputs": inputs, "request_id": number, **options})
        async with asyncio.timeout(self._timeout):
            return await answer

    async def close(self) -> None:
        """End the stream, and wait until the server has ended it too."""
        self._requests.put_nowait(None)
        async with asyncio.timeout(self._timeout):
            await self._reader

    async def _sent(self) -> AsyncIterator[dict[str, Any]]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self, results: AsyncIterator[Any]) -> None:
        """Hand results over to the inferences that wait for them, until the stream ends."""
        try:
            async for result, error in results:
                if error is not None:
                    raise error
                answer = self._answers.pop(result.get_response().id)
                if not answer.done():  # done: its timeout has passed
                    answer.set_result(result)
            raise ConnectionResetError("the server has ended the stream")
        except Exception as error:
            self._error = error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._error)


async def drive(client: Client, load: Load) -> list[Record]:
    """Put a load on a server, and return the records of all inferences that were sent."""
    numbers = range(load.first, load.first + load.steps)
    # Inputs are made beforehand: their cost would add to the latencies.
    inputs = [[client.inputs(load.inputs(i, step)) for step in numbers] for i in range(load.sequences)]
    due, open_loop = load.due().tolist(), load.rate is not None
    records: list[Record] = []
    gc.collect()
    began = time.perf_counter()

    async def send(i: int, step: int, planned: float) -> Record:
        """Run one inference, once it is due."""
        now = time.perf_counter() - began
        possible = max(now, planned)
        if planned > now:
            await asyncio.sleep(planned - now)
        options = (
            {
                "sequence_id": load.first_id + i,
                "sequence_start": step == 0,
                "sequence_end": load.ends and step == numbers[-1],
            }
            if load.stateful
            else {}
        )
        record = Record(i, step, planned if open_loop else possible, possible, time.perf_counter() - began)
        records.append(record)
        try:
            result = await client.infer(load.model, inputs[i][step - load.first], **options)
        except InferenceServerException as error:
            record.status = str(error.status() or type(error).__name__).removeprefix("StatusCode.")
            record.error = str(error.message())
        except Exception as error:  # of the connection
            record.status, record.error = type(error).__name__, str(error)
        else:
            if load.keep(i, step):
                record.outputs = client.outputs(result)
        record.end = time.perf_counter() - began
        return record

    async def run(i: int) -> None:
        """Run the steps of one sequence one after the other."""
        for number, step in enumerate(numbers):
            record = await send(i, step, due[number][i])
            if record.status != OK and load.stop_at_error:
                return

    independent = open_loop and not load.stateful
    tasks = (
        [send(i, step, due[number][i]) for number, step in enumerate(numbers) for i in range(load.sequences)]
        if independent
        else [run(i) for i in range(load.sequences)]
    )
    await asyncio.gather(*tasks)
    return records


def run(interface: str, url: str, load: Load) -> list[Record]:
    """Put a load on a server from this thread, and return the records of all inferences that were sent."""

    async def main() -> list[Record]:
        async with Client(interface, url, load.sequences if load.stateful else 1000, load.timeout) as client:
            return await drive(client, load)

    return asyncio.run(main())


def summary(records: Iterable[Record]) -> dict[str, Any]:
    """Return counts, and of inferences that succeeded the throughput per second and latencies in milliseconds.

    ``late_p99_ms`` is the time from when inferences could be sent until they were: if it is not small, the client was
    at its limit.
    """
    records = list(records)
    good = [record for record in records if record.status == OK]
    span = max((record.end for record in good), default=0.0) - min((record.due for record in good), default=0.0)
    return {
        "count": len(records),
        "errors": dict(Counter(record.status for record in records if record.status != OK)),
        "throughput": len(good) / span if span else 0.0,
        "p50_ms": percentile([record.latency for record in good], 50),
        "p99_ms": percentile([record.latency for record in good], 99),
        "late_p99_ms": percentile([record.start - record.possible for record in good], 99),
    }


def percentile(seconds: list[float], percent: float) -> float:
    """Return a percentile of times in milliseconds."""
    return round(1e3 * float(np.percentile(seconds, percent)), 3) if seconds else 0.0


def frames(shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> Feeds:
    """Return random inputs of these shapes and dtypes, with values of about 1, different from step to step."""
    random = np.random.RandomState(0)
    pools = {name: random.standard_normal((FRAMES, *shape)).astype(dtype) for name, (shape, dtype) in shapes.items()}
    return lambda sequence, step: {name: pool[(31 * sequence + step) % FRAMES] for name, pool in pools.items()}


def tokens(vocabulary: int, names: Iterable[str] = DECODER_INPUTS, beams: tuple[int, ...] = (1,)) -> Feeds:
    """Return the inputs of a decoder: a prompt of 1 to 32 tokens, then a token in each step. ``beams`` is a shape."""
    names = frozenset(names)

    def inputs(sequence: int, step: int) -> Inputs:
        prompt = 1 + sequence * 7 % 32
        past, count = (0, prompt) if step == 0 else (prompt + step - 1, 1)
        positions = np.arange(past, past + count, dtype=np.int64)[None]
        found = {
            "input_ids": (positions + sequence) % vocabulary,
            "position_ids": positions,
            "attention_mask": np.ones((1, past + count), np.int64),
            "beam_idx": np.zeros(beams, np.int32),
        }
        return {name: array for name, array in found.items() if name in names}

    return inputs


def feeds(metadata: Mapping[str, Any], vocabulary: int) -> Feeds:
    """Return inputs for a model from its metadata: `tokens` for a decoder, else `frames` with dynamic extents of 1."""
    ports = {
        port["name"]: (tuple([max(int(extent), 1) for extent in port["shape"]]), triton_to_np_dtype(port["datatype"]))
        for port in metadata["inputs"]
    }
    if "input_ids" not in ports:
        return frames(ports)
    return tokens(vocabulary, ports, ports["beam_idx"][0] if "beam_idx" in ports else ())  # Triton has [1, 1]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--url", required=True, help="HOST:PORT")
    found.add_argument("--interface", choices=("REST", "gRPC", "stream"), default="gRPC")
    found.add_argument("--model", required=True)
    found.add_argument("--sequences", type=int, default=64, help="that run side by side (64)")
    found.add_argument("--steps", type=int, default=50, help="of each sequence (50)")
    found.add_argument("--rate", type=float, help="inferences per second; without it, the loop is closed")
    found.add_argument("--stateless", action="store_true", help="send inferences that belong to no sequence")
    found.add_argument("--first-id", type=int, default=1, help="id of the first sequence (1)")
    found.add_argument("--vocabulary", type=int, default=50, help="tokens of a decoder are less than this (50)")
    found.add_argument("--seed", type=int, default=0, help="of the times at which inferences are due")
    return found


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the summary of the load that the command line asks for."""
    async with Client(options.interface, options.url, 1000 if options.stateless else options.sequences) as client:
        load = Load(
            options.model,
            feeds(await client.metadata(options.model), options.vocabulary),
            options.sequences,
            options.steps,
            options.rate,
            not options.stateless,
            first_id=options.first_id,
            seed=options.seed,
        )
        records = await drive(client, load)
    return summary(records) | {"messages": sorted({record.error for record in records if record.error})[:10]}


def main() -> None:
    """Run the command line."""
    json.dump(asyncio.run(measured(parser().parse_args())), sys.stdout)
    print()


if __name__ == "__main__":
    main()
