"""Inferences with more rows than a batch has: they are split, and their outputs joined."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.errors import Error
from ovgpu.serve import inference
from ovgpu.serve.engines import DynamicEngine
from tests.batching.nets import SIZE, model
from tests.harness.ir import Net
from tests.harness.layers import add, mul, transpose
from tests.harness.servers.serving import INTERFACES, Serving, expected, fails, serving, write

BATCH = 4


def mixed() -> ov.Model:
    """Reverse the first ``length`` elements of rows, which fails if there are fewer; ``gain`` is shared by all rows.

    The batch axis of ``c`` and of the output ``z`` is 1.
    """
    net = Net("mixed")
    x, length = net.parameter("f32", (-1, SIZE), "x"), net.parameter("i32", (-1,), "length")
    gain, c = net.parameter("f32", (), "gain"), net.parameter("f32", (SIZE, -1), "c")
    moved = net.layer("ReverseSequence", "opset1", [x, length], {"batch_axis": 0, "seq_axis": 1}, name="reverse")
    y = mul(net, moved, gain)
    net.result(net.layer("Relu", "opset1", [y], names=["y"]))
    net.result(net.layer("Relu", "opset1", [add(net, transpose(net, y, [1, 0]), c)], names=["z"]))
    return model(net)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, mixed(), "mixed")
    with serving(folder, engine={"max_batch_size": BATCH, "max_wait_ms": 0}) as found:
        yield found


def inputs(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.uniform(0, 1, (rows, SIZE)).astype(np.float32),
        "length": rng.integers(1, SIZE + 1, rows).astype(np.int32),
        "gain": np.array(1.5, np.float32),
        "c": rng.uniform(0, 1, (SIZE, rows)).astype(np.float32),
    }


@pytest.mark.parametrize("rows", [BATCH, BATCH + 1, 16 * BATCH + 3])
@pytest.mark.parametrize("interface", INTERFACES)
def test_outputs_are_those_of_one_request(served: Serving, interface: str, rows: int) -> None:
    given = inputs(rows)
    with served.client(interface) as client:
        found = client.infer("mixed", given)
    for name, value in expected(mixed(), given).items():
        assert np.array_equal(found[name], value)


def test_batches_are_full(tmp_path: Path) -> None:
    write(tmp_path, mixed(), "mixed")
    with serving(tmp_path, engine={"max_batch_size": BATCH, "max_wait_ms": 0}) as server:
        with server.client("gRPC") as client:
            client.infer("mixed", inputs(3 * BATCH + 1))
        sizes = server.server.service.models.current["mixed"].statistics.sizes
        assert {rows: size.count for rows, size in sizes.items()} == {BATCH: 3, 1: 1}


@pytest.mark.parametrize("interface", INTERFACES)
def test_if_a_row_fails_all_rows_do(served: Serving, interface: str) -> None:
    given = inputs(8 * BATCH)
    given["length"][2 * BATCH + 1] = SIZE + 1
    with served.client(interface) as client:
        assert "reverse" in fails("INVALID_ARGUMENT", client.infer, "mixed", given)
        given["length"] = given["length"][:-1]
        text = fails("INVALID_ARGUMENT", client.infer, "mixed", given)
        assert f"different numbers of rows: {8 * BATCH - 1}, {8 * BATCH}" in text
    assert served.server.service.models.current["mixed"].in_flight == 0


class Results(list[Any]):
    """Results of an inference."""

    def __init__(self, *arrays: Any) -> None:
        super().__init__(arrays)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self)


class SlowEngine(DynamicEngine):
    """Engine whose inferences end when a test says so."""

    def __init__(self) -> None:
        self.max_batch_size, self.parallel, self.output_batch_axes = BATCH, 1, (0,)
        self.submitted = deque[Future[Any]]()

    def submit(self, inputs: Any) -> Future[Any]:
        self.submitted.append(Future())
        return self.submitted[-1]

    def batch_axis(self, input_index: int) -> int | None:
        return 0


def test_outputs_of_different_shapes_are_not_joined() -> None:
    async def run() -> None:
        engine = SlowEngine()
        inferring = asyncio.create_task(inference.infer(engine, {0: np.zeros((2 * BATCH, 1))}))
        while len(engine.submitted) < 2:
            await asyncio.sleep(0)
        for future, width in zip(engine.submitted, (2, 1)):
            future.set_result(Results(np.zeros((BATCH, width))))
        await inferring

    with pytest.raises(Error, match=r"the shape \(4, 1\) in one batch, and \(4, 2\) in another"):
        asyncio.run(run())


def test_few_batches_of_an_inference_wait_at_a_time() -> None:
    """Other inferences run in between. If the client gives up, batches that have not begun are cancelled."""

    async def run() -> None:
        engine = SlowEngine()
        inferring = asyncio.create_task(inference.infer(engine, {0: np.zeros((100 * BATCH, 1))}))
        while len(engine.submitted) < 2:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        first, second = engine.submitted
        inferring.cancel()
        await asyncio.wait({inferring})
        assert inferring.cancelled() and first.cancelled() and second.cancelled()

    asyncio.run(run())
