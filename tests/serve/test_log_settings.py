"""Log and trace settings, which clients change."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from ovgpu.serve import log_settings
from ovgpu.serve.errors import ServeError
from ovgpu.serve.log_settings import LogSettings
from tests.harness.servers.serving import INTERFACES, Client, Serving, fails, serving, write
from tests.serve.test_inference import post
from tests.serve.test_models import adding, until
from tests.serve.test_readiness import write_broken
from tests.serve.test_stop import process
from tests.serve.wire import Wire

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
X = np.ones((2, 4), np.float32)


@pytest.fixture
def reset() -> Iterator[None]:
    yield
    log_settings.settings.update(DEFAULTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, adding(1), "add")
    with serving(folder) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, server: Serving, reset: None) -> Iterator[Client]:
    with server.client(request.param) as found:
        yield found


def values(client: Client, found: Any) -> dict[str, Any]:
    """Return the settings in a response."""
    if client.interface == "REST":
        return dict(found)
    return {name: getattr(x, x.WhichOneof("parameter_choice")) for name, x in found.settings.items()}


def test_settings_are_shown_and_changed(client: Client) -> None:
    api = client.client
    assert values(client, api.get_log_settings()) == DEFAULTS
    changes = {"log_info": False, "log_error": False, "log_verbose_level": 3}
    assert values(client, api.update_log_settings(changes)) == DEFAULTS | changes
    assert values(client, api.update_log_settings({"log_info": True, "log_format": "default"})) == (
        DEFAULTS | {"log_error": False, "log_verbose_level": 3}
    )
    assert logging.getLogger("ovgpu.serve").level == logging.DEBUG


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"log_info": 1}, 400, "log_info 1 is neither true nor false"),
        ({"log_warning": "false"}, 400, "is neither true nor false"),
        ({"log_verbose_level": -1}, 400, "log_verbose_level -1"),
        ({"log_verbose_level": "1"}, 400, "is no number"),
        ({"log_verbose_level": True}, 400, "is no number"),
        ({"log_infos": True}, 400, "there is no setting 'log_infos'; there are log_file, log_info"),
        ({"log_file": "log"}, 501, "log_file cannot be changed"),
        ({"log_format": "ISO8601"}, 501, "log_format cannot be changed"),
    ],
    ids=str,
)
def test_settings_that_are_refused(server: Serving, changes: dict[str, Any], status: int, text: str) -> None:
    """None is changed then."""
    code, _, body = post(server, "/v2/logging", {"log_error": False} | changes)
    assert code == status and text in json.loads(body)["error"]
    assert log_settings.settings.values() == DEFAULTS


def test_values_that_are_null(server: Serving) -> None:
    code, _, body = post(server, "/v2/logging", {"log_error": None})
    assert (code, json.loads(body)) == (200, DEFAULTS)


def test_types_of_messages(server: Serving) -> None:
    request = service_pb2.LogSettingsRequest()
    request.settings["log_info"].string_param = "yes"
    with Wire(server) as wire:
        answer = wire.call(request, "LogSettings")
    assert (answer.status, answer.text) == ("INVALID_ARGUMENT", "log_info 'yes' is neither true nor false")


@pytest.mark.parametrize(
    ("off", "kept"),
    [
        ((), ["info", "warning", "error", "critical"]),
        (("log_info",), ["warning", "error", "critical"]),
        (("log_warning", "log_error"), ["info", "critical"]),
    ],
)
def test_levels_are_switched_one_by_one(off: tuple[str, ...], kept: list[str]) -> None:
    settings = LogSettings()
    settings.update(dict.fromkeys(off, False))
    levels = ["info", "warning", "error", "critical"]
    records = {level: logging.makeLogRecord({"levelno": getattr(logging, level.upper())}) for level in levels}
    assert [level for level in levels if settings.filter(records[level])] == kept
    with pytest.raises(ServeError):
        settings.update({"log_info": True, "log_error": "no"})
    assert settings.values()["log_info"] is ("log_info" not in off)


def test_the_log_of_a_server(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with process(tmp_path, "--poll-seconds", 0) as served, served.client("gRPC") as client:
        api = client.client
        api.update_log_settings({"log_info": False})
        api.load_model("add")
        write_broken(tmp_path, "add", 2)
        fails("INVALID_ARGUMENT", api.load_model, "add")
        until(lambda: " ERROR version 2 of model 'add' was not loaded" in served.lines[-1])
        api.update_log_settings({"log_info": True, "log_error": False, "log_verbose_level": 1})
        fails("INVALID_ARGUMENT", api.load_model, "add")
        client.infer("add", {"x": X})
        wanted = " DEBUG inference of model 'add', version 1: {'x': (2, 4)} to {'y': (2, 4)}\n"
        until(lambda: served.lines[-1].endswith(wanted))
        assert served.stop() == 0
    assert sum("INFO loading version 1 " in line for line in served.lines) == 1
    assert sum("INFO loading version 2 " in line for line in served.lines) == 1
    assert sum("ERROR" in line for line in served.lines) == 1


def test_there_are_no_trace_settings(client: Client) -> None:
    for call in (client.client.get_trace_settings, client.client.update_trace_settings):
        for model in (None, "add"):
            assert "trace settings are not supported" in fails("UNIMPLEMENTED", call, model)
