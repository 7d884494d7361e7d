"""The checks of the server's conformance hold for Triton Inference Server itself."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from ovgpu import cli
from tests.batching.nets import sums
from tests.harness.servers import triton
from tests.harness.servers.serving import Client, write
from tests.serve.conformance import ROWS, Api, outcome
from tests.serve.test_inference import echo

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(triton.missing()), reason=triton.missing()),
    pytest.mark.timeout(300),
]

# Calls that do not depend on how models are configured, and change none. Triton cannot unregister regions of shared
# memory that have just been used.
CHECKED = {
    "ServerMetadata",
    "ModelMetadata",
    "binary tensor data",
    "batches",
    "compression",
    "sequences",
    "`ModelStreamInfer`",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryUnregister",
    "LogSettings",
}


def test_triton_answers_as_the_checks_say(tmp_path: Path) -> None:
    models, written = tmp_path / "models", tmp_path / "triton"
    write(models, echo("f32"), "echo")
    write(models, sums(), "sums")
    assert not cli.main(["triton", str(written), str(models)])
    with triton.triton_server(written, tmp_path) as (http, address), grpc.insecure_channel(address) as channel:
        found = {}
        for interface, place in (("REST", http), ("gRPC", address)):
            with Client(interface, place) as client:
                api = Api(interface, http, models, client, channel)
                found |= {(row.name, interface): outcome(row, api) for row in ROWS if row.name in CHECKED}
    assert {name for name, _ in found} == CHECKED
    assert {key: cell for key, cell in found.items() if cell not in (("same", ""), ("", ""))} == {}
