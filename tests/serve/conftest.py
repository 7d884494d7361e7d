"""A server of small models, for requests that no client would send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.batching.nets import sums
from tests.harness.servers.serving import Serving, serving, write
from tests.serve.test_inference import affine, echo, reshape
from tests.serve.test_predict import strings
from tests.serve.wire import Wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    for name, model in {
        "echo": echo("f32"),
        "affine": affine(),
        "strings": strings(),
        "sums": sums(),
        "reshape": reshape(),
    }.items():
        write(folder, model, name)
    with serving(folder, body_mib=1, shared_memory=True) as found:
        yield found


@pytest.fixture(scope="module")
def wire(server: Serving) -> Iterator[Wire]:
    with Wire(server) as found:
        yield found
