"""The table of calls in the documentation: it is the one of today, and has all calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route
from tritonclient.grpc import service_pb2

from ovgpu.serve.access import AllowedHosts
from ovgpu.serve.http_app import HttpApp
from ovgpu.serve.shared_memory import FOLDER
from tests.harness.servers.serving import serving
from tests.serve import conformance

TABLE = conformance.PAGE.read_text(encoding="utf-8").partition(conformance.BEGIN)[2].partition(conformance.END)[0]
OPENAI = conformance.PAGE.parent / "openai" / "README.md"
OWN = {"/", "/metrics"}  # routes that are of no protocol in the table


@pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="the system has no folder of shared memory")
def test_the_table_is_the_one_of_today() -> None:
    assert f"\n{conformance.markdown()}\n" == TABLE, "python -m tests.serve.conformance"


def test_all_methods_are_in_the_table() -> None:
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    assert [method.name for method in methods if f"`{method.name}`" not in TABLE] == []


def test_all_routes_are_in_the_table(tmp_path: Path) -> None:
    """With any name of a model or region. Versions, and calls for all models or regions, are not listed apart."""
    with serving(tmp_path) as server:
        assert server.server.service is not None
        app = HttpApp(server.server.service, AllowedHosts("127.0.0.1"), 1, 1, server.server.held)
        paths = {route.path for route in app.asgi.routes if isinstance(route, Route)} - OWN
    texts = OPENAI.read_text().replace("MODEL", "{}")  # has the endpoints under /v1, which are also under /v3
    listed = set(re.findall(r"/v\d[^`]*", re.sub(r"\{\w+\}", "{}", TABLE) + texts))
    listed |= {path.replace("/v1/", "/v3/") for path in re.findall(r"/v1[^`]*", texts)}

    def is_listed(path: str) -> bool:
        path = re.sub(r"\{\w+\}", "{}", path.replace("/versions/{version}", "").replace("generate_stream", "generate"))
        group, call = path.rsplit("/", 1)
        return path in listed or not {f"{group}/{{}}/{call}", f"{group}/region/{{}}/{call}"}.isdisjoint(listed)

    assert sorted(path for path in paths if not is_listed(path)) == ["/v2/models/{model}/trace/setting"]
