"""Settings of models in their folders, and versions that are served side by side."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu import Type
from ovgpu.errors import Error
from ovgpu.serve.engines import EngineOptions, open_engine
from ovgpu.serve.repository import Repository
from ovgpu.serve.settings import Policy, Settings, SettingsReader, read
from tests.batching.nets import sums
from tests.harness.servers.serving import INTERFACES, Client, Serving, fails, serving, write
from tests.serve.test_access import call
from tests.serve.test_models import X, adding, counting, until, version
from tests.serve.test_predict import strings

ADD_PORTS = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'
X_VALUE = '{ key: "x" value { data_type: TYPE_FP32 dims: 4 %s } }'
WARM_UP = f'model_warmup {{ name: "w" batch_size: 3 count: 2 inputs {X_VALUE} }}'


def settings(folder: Path, text: str, name: str = "config.pbtxt") -> tuple[Settings, Policy]:
    """Return the settings in a file of a folder, which is named m."""
    target = folder / "m"
    target.mkdir(exist_ok=True)
    (target / name).write_text(text)
    return read(target, "m")


def put(folder: Path, text: str, name: str = "ovgpu.toml", model: str = "add") -> None:
    """Write the settings of a model."""
    (folder / model / name).write_text(text)


def value(client: Client, number: str = "", model: str = "add") -> float:
    return float(client.infer(model, {"x": X}, number)["y"][0, 0])


# ---- files


@pytest.mark.parametrize(
    ("text", "engine", "others"),
    [
        ("", {}, {}),
        ("max_batch_size: 8", {"max_batch_size": 8}, {}),
        ('backend: "openvino" max_batch_size: 0', {"batching": False}, {}),
        ("# max_batch_size: 0", {}, {}),
        ("max_batch_size: 0 sequence_batching {}", {"max_wait_ms": 0}, {}),
        (
            "dynamic_batching { max_queue_delay_microseconds: 500 default_queue_policy { max_queue_size: 7 } }",
            {"max_wait_ms": 0.5},
            {"max_queue": 7},
        ),
        ("dynamic_batching {}", {"max_wait_ms": 0}, {}),
        (
            "sequence_batching { oldest { max_candidate_sequences: 5 max_queue_delay_microseconds: 2000 } "
            "max_sequence_idle_microseconds: 9000000 }",
            {"max_sequences": 5, "max_wait_ms": 2},
            {"idle_seconds": 9},
        ),
        ("sequence_batching { direct { max_queue_delay_microseconds: 100 } }", {"max_wait_ms": 0.1}, {}),
        ("instance_group { count: 2 kind: KIND_CPU }", {"requests": 2, "device": "CPU"}, {}),
        ("instance_group { gpus: 1 kind: KIND_GPU }", {"device": "NVIDIA.1"}, {}),
        ("instance_group { gpus: [0, 1] }", {"device": "MULTI:NVIDIA.0,NVIDIA.1"}, {}),
        (
            'parameters { key: "INFERENCE_PRECISION_HINT" value { string_value: "f32" } }',
            {"properties": {"INFERENCE_PRECISION_HINT": "f32"}},
            {},
        ),
        (
            f'name: "m" backend: "openvino" platform: "openvino_ir" response_cache {{ enable: false }} {ADD_PORTS}',
            {},
            {"inputs": (("x", "FP32"),), "outputs": (("y", "FP32"),)},
        ),
    ],
)
def test_the_configuration_of_triton(tmp_path: Path, text: str, engine: dict[str, Any], others: dict[str, Any]) -> None:
    assert settings(tmp_path, text) == (Settings(engine, **others), Policy())


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("", [4]),
        ("version_policy { latest { num_versions: 2 } }", [4, 3]),
        ("version_policy { latest {} }", [4]),
        ("version_policy { all {} }", [4, 3, 2, 1]),
        ("version_policy { specific { versions: [1, 3, 9] } }", [3, 1]),
    ],
)
def test_version_policies_of_triton(tmp_path: Path, text: str, served: list[int]) -> None:
    assert settings(tmp_path, text)[1].chosen([2, 4, 1, 3]) == served


@pytest.mark.parametrize(
    ("text", "served"),
    [("", [4]), ("versions = 3", [4, 3, 2]), ('versions = "all"', [4, 3, 2, 1]), ("versions = [2, 9]", [2])],
)
def test_version_policies_of_our_own(tmp_path: Path, text: str, served: list[int]) -> None:
    assert settings(tmp_path, text, "ovgpu.toml")[1].chosen([2, 4, 1, 3]) == served


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("max_batch_size: [", "1:17"),
        ("max_batches: 1", 'no field named "max_batches"'),
        ("max_batch_size: -1", "max_batch_size is -1"),
        ('name: "other"', "name is 'other', but the folder's is 'm'"),
        ('backend: "python"', "backend is 'python', not one of openvino"),
        ('platform: "ensemble"', "platform is 'ensemble'"),
        ("ensemble_scheduling { step { model_name: 'x' } }", "ensemble_scheduling.step.model_name is not supported"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.priority_levels is not supported"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering is not"),
        (
            "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1 } }",
            "dynamic_batching.default_queue_policy.default_timeout_microseconds is not",
        ),
        ('sequence_batching { control_input { name: "START" } }', "sequence_batching.control_input.name is not"),
        ('sequence_batching { state { input_name: "i" } }', "sequence_batching.state.input_name is not"),
        ("response_cache { enable: true }", "response_cache.enable is not supported"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled is not"),
        ("instance_group { count: 1 } instance_group { count: 2 }", "instance_group has several groups"),
        ("instance_group { kind: KIND_MODEL }", "instance_group.kind is KIND_MODEL"),
        ("instance_group { passive: true }", "instance_group.passive is not supported"),
        ('input { name: "x" reshape { shape: 4 } }', "input.reshape.shape is not supported"),
        ('input { name: "x" allow_ragged_batch: true }', "input.allow_ragged_batch is not supported"),
        ('output { name: "y" data_type: 99 }', "data_type of 'y' is 99, which is unknown"),
        ("instance_group { kind: 99 }", "instance_group.kind is 99, which is unknown"),
    ],
)
def test_configurations_that_are_not_supported(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(Error) as found:
        settings(tmp_path, text)
    assert str(found.value).startswith("config.pbtxt: ")
    assert error in str(found.value)


def test_fields_that_only_make_faster_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "optimization { cuda { graphs: true } } dynamic_batching { preferred_batch_size: [4, 8] }"
    assert settings(tmp_path, text)[0] == Settings({"max_wait_ms": 0})
    assert "config.pbtxt of model 'm': optimization.cuda.graphs is ignored" in caplog.text
    assert "dynamic_batching.preferred_batch_size is ignored" in caplog.text


def test_a_file_of_our_own(tmp_path: Path) -> None:
    text = """
        versions = [1, 2]
        default_version = 1
        device = "CPU"
        batching = true
        max_batch_size = 16
        max_sequences = 4
        max_wait_ms = 1
        requests = 2
        max_queue = 100
        idle_seconds = 0.5
        warm_up = [{ x = [2, 4] }]
        [properties]
        INFERENCE_PRECISION_HINT = "f32"
    """
    found, policy = settings(tmp_path, text, "ovgpu.toml")
    assert policy == Policy(None, frozenset({1, 2}), 1)
    assert found.engine == {
        "device": "CPU",
        "batching": True,
        "max_batch_size": 16,
        "max_sequences": 4,
        "max_wait_ms": 1,
        "requests": 2,
        "properties": {"INFERENCE_PRECISION_HINT": "f32"},
    }
    assert (found.max_queue, found.idle_seconds) == (100, 0.5)
    assert found.warm_up is not None and found.warm_up[0].inputs == {"x": ((2, 4), "zeros")}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("max_batch_size =", "Invalid value"),
        ("batch = 1", "there is no setting batch"),
        ("max_batch_size = 0", "max_batch_size is 0, not a number from 1"),
        ("max_batch_size = 1.5", "max_batch_size is 1.5"),
        ("max_batch_size = true", "max_batch_size is True"),
        ("idle_seconds = nan", "idle_seconds is nan"),
        ("max_sequences = 100000000", "max_sequences is 100000000"),
        ('batching = "no"', "batching is 'no'"),
        ("device = 1", "device is 1"),
        ("properties = []", "properties is []"),
        ("versions = 0", "versions is 0"),
        ('versions = "newest"', "versions is 'newest'"),
        ("versions = []", "versions is []"),
        ("versions = [0]", "versions is [0]"),
        ('default_version = "1"', "default_version is '1'"),
        ("warm_up = true", "warm_up has no tables"),
        ("warm_up = [{ x = 4 }]", "warm_up of input 'x' is 4, not a shape"),
        (f"versions = {'[' * 5000}", "its values are nested too deeply"),
    ],
)
def test_files_of_our_own_that_are_malformed(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(Error) as found:
        settings(tmp_path, text, "ovgpu.toml")
    assert str(found.value).startswith("ovgpu.toml: ")
    assert error in str(found.value)


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")], ids=["deleted", "unreadable"])
def test_a_file_that_goes_away_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    """A file that is deleted counts as none. One that cannot be read is an error of its model alone."""
    file, stat = tmp_path / "ovgpu.toml", Path.stat
    file.write_text("max_batch_size = 4")
    reader = SettingsReader()
    assert reader.read(tmp_path, "m") == (Settings({"max_batch_size": 4}), Policy(), "")

    def failing(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        if path == file and error is not None:
            raise error
        if path == file:
            file.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", failing)
        found = [reader.read(tmp_path, "m") for _ in range(2)][-1]
    assert found == (Settings(), Policy(), "the settings cannot be read: Input/output error" if error else "")
    file.write_text("max_batch_size = 4")
    assert reader.read(tmp_path, "m")[0] == Settings({"max_batch_size": 4})


def test_a_malformed_file_leaves_other_models_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other models are served, also if reading the file fails with an unforeseen exception."""
    for name in ("add", "other", "third"):
        write(tmp_path, adding(1), name)
    put(tmp_path, f"versions = {'[' * 5000}", model="other")
    put(tmp_path, 'input { name: "x" data_type: 99 }', "config.pbtxt", "third")
    put(tmp_path, "max_batch_size = 4")
    repository = Repository(tmp_path)
    assert [bool(served.error) for _, served in sorted(repository.scan().items())] == [False, True, True]

    def broken(text: str, *arguments: Any) -> Any:
        raise ValueError("nobody knows why")

    monkeypatch.setattr("ovgpu.serve.triton_config.parse", broken)
    put(tmp_path, 'name: "third"', "config.pbtxt", "third")
    for _ in range(2):
        assert repository.scan()["third"].error == "the settings cannot be read: see the log"
    assert caplog.text.count("ValueError: nobody knows why") == 1


def test_two_files_are_one_too_many(tmp_path: Path) -> None:
    settings(tmp_path, "")
    with pytest.raises(Error, match=r"both ovgpu\.toml and config\.pbtxt"):
        settings(tmp_path, "", "ovgpu.toml")


# ---- models


def test_settings_replace_those_of_the_server(tmp_path: Path) -> None:
    for name in ("mine", "theirs", "other"):
        write(tmp_path, adding(1), name)
    write(tmp_path, counting(0), "count")
    put(tmp_path, 'max_batch_size = 4\nrequests = 2\nproperties = { PERF_COUNT = "YES" }', model="mine")
    put(tmp_path, f"max_batch_size: 2 {ADD_PORTS}", "config.pbtxt", "theirs")
    put(tmp_path, "max_sequences = 3\nmax_queue = 5\nidle_seconds = 0.05", model="count")
    with serving(tmp_path, engine={"max_batch_size": 8}) as server, server.client("gRPC") as client:
        models = server.server.service.models.current
        assert {name: models[name].engine.max_batch_size for name in models} == {
            "mine": 4,
            "theirs": 2,
            "other": 8,
            "count": 3,
        }
        assert models["mine"].engine.parallel == 2
        for name in ("mine", "theirs", "other"):
            assert value(client, model=name) == 2
        for id in (1, 2, 3):
            client.infer("count", {"x": X}, sequence_id=id, sequence_start=True)
        fails("RESOURCE_EXHAUSTED", client.infer, "count", {"x": X}, sequence_id=4, sequence_start=True)
        until(lambda: not len(server.server.service.sequences))  # they have been idle


def test_properties_are_added_to_those_of_the_server(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    put(tmp_path, 'properties = { PERF_COUNT = "YES" }')
    with serving(tmp_path, engine={"properties": {"INFERENCE_PRECISION_HINT": "bf16"}}) as server:
        engine: Any = server.server.service.models.current["add"].engine
        compiled = engine._batcher.compiled_model
        assert compiled.get_property("PERF_COUNT")
        assert compiled.get_property("INFERENCE_PRECISION_HINT") == Type.bf16


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('input { name: "z" }', "the model has no input 'z'"),
        ('input { name: "x" data_type: TYPE_INT8 }', "input 'x' of the model is FP32, not INT8"),
        ('output { name: "z" }', "the model has no output 'z'"),
        ('parameters { key: "NO_SUCH" value { string_value: "1" } }', "NO_SUCH"),
        (
            'default_model_filename: "net.xml"',
            "default_model_filename is 'net.xml', and the model's",
        ),
        ("version_policy { specific { versions: 7 } }", "none of the versions"),
        ('name: "%s/name"', "name is"),
        (WARM_UP % 'input_data_file: "nothing"', "the inference 'w' of the warm-up has failed"),
        (WARM_UP.replace('key: "x"', 'key: "z"') % "zero_data: true", "the model has no input 'z'"),
    ],
)
def test_settings_that_do_not_fit_the_model(tmp_path: Path, text: str, error: str) -> None:
    """The model is not loaded. The reason has no paths; the other models are served."""
    write(tmp_path, adding(1), "add")
    write(tmp_path, adding(2), "other")
    put(tmp_path, text.replace("%s", str(tmp_path)), "config.pbtxt")
    with serving(tmp_path) as server, server.client("REST") as client:
        assert value(client, model="other") == 3
        assert not client.client.is_server_ready()
        (row,) = [row for row in client.client.get_model_repository_index() if row["name"] == "add"]
        assert row["state"] == "UNAVAILABLE"
        assert error in row["reason"]
        assert str(tmp_path) not in row["reason"]


def test_a_folder_with_one_model_has_settings_too(tmp_path: Path) -> None:
    folder = write(tmp_path, adding(1), "add")
    (folder / "ovgpu.toml").write_text("max_batch_size = 4")
    for path in (folder, folder / "model.xml"):
        with serving(path) as server:
            (only,) = server.server.service.models.current.values()
            assert only.engine.max_batch_size == 4


def test_settings_that_change(tmp_path: Path) -> None:
    """The model is loaded again. If they are malformed, it stays as it was, and the index has the reason."""
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("REST") as client:
        models = server.server.service.models

        def rows() -> int:
            assert value(client) == 2
            return models.current["add"].engine.max_batch_size

        assert rows() == 32
        put(tmp_path, "max_batch_size = 4")
        until(lambda: rows() == 4)
        put(tmp_path, "max_batch_size = four")
        until(lambda: "ovgpu.toml: " in models.failures.get("add", ""))
        assert rows() == 4
        assert client.client.is_server_ready()
        assert "ovgpu.toml" in fails("INVALID_ARGUMENT", client.client.load_model, "add")
        assert rows() == 4
        put(tmp_path, "max_batch_size = 2")
        until(lambda: rows() == 2)
        assert models.failures == {}
        before = models.current["add"]
        put(tmp_path, "# the same\nmax_batch_size = 2")
        models_seen = len(models.versions())
        client.client.get_model_repository_index()
        assert models.current["add"] is before and models_seen == 1


# ---- warm-up


@pytest.mark.parametrize(
    ("name", "text", "shapes"),
    [
        ("config.pbtxt", WARM_UP % "zero_data: true", [(3, 4), (3, 4)]),
        ("config.pbtxt", WARM_UP % "random_data: true", [(3, 4), (3, 4)]),
        ("config.pbtxt", WARM_UP % 'input_data_file: "x.bin"', [(3, 4), (3, 4)]),
        ("ovgpu.toml", "warm_up = [{ x = [5, 4] }, { x = [1, 4] }]", [(5, 4), (1, 4)]),
        ("ovgpu.toml", "warm_up = []", []),
        ("ovgpu.toml", "", []),
    ],
)
def test_inferences_before_the_model_is_served(tmp_path: Path, name: str, text: str, shapes: list[Any]) -> None:
    write(tmp_path, adding(1), "add")
    (tmp_path / "add" / "warmup").mkdir()
    (tmp_path / "add" / "warmup" / "x.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    put(tmp_path, text, name)
    given: list[np.ndarray[Any, Any]] = []
    usual: list[bool] = []

    def opener(path: Path, observer: Any) -> Any:
        engine: Any = open_engine(path, EngineOptions("CPU"), observer)
        submit, warm_up = engine.submit, engine.warm_up
        engine.submit = lambda inputs: given.append(inputs[0]) or submit(inputs)
        engine.warm_up = lambda: usual.append(True) or warm_up()
        return engine

    with serving(tmp_path, opener=opener) as server:
        assert server.server.service.models.current["add"].statistics.computed.count == 0
    assert [array.shape for array in given] == shapes
    assert bool(usual) == (text != "warm_up = []")
    if "x.bin" in text:
        assert given[0].ravel().tolist() == list(range(12))
    elif "random" in text:
        assert len(set(given[0].ravel().tolist())) == 12


def test_sequences_and_strings_are_warmed_up(tmp_path: Path) -> None:
    write(tmp_path, sums(), "sums")
    write(tmp_path, strings(), "strings")
    size = sums().inputs[0].partial_shape[1].get_length()
    put(tmp_path, f"warm_up = [{{ x = [1, {size}] }}]", model="sums")
    put(tmp_path, "warm_up = [{ x = [2] }]", model="strings")
    with serving(tmp_path) as server, server.client("gRPC") as client:
        assert server.server.service.models.failures == {}
        x = np.ones((1, size), np.float32)
        assert client.infer("sums", {"x": x}, sequence_id=1, sequence_start=True)["steps"][0] == 1


# ---- versions


def numbers(server: Serving) -> list[str]:
    return [version.number for version in server.server.service.models.serving("add")]


@pytest.mark.parametrize("interface", INTERFACES)
def test_versions_side_by_side(tmp_path: Path, interface: str) -> None:
    for number in (1, 2, 3):
        write(tmp_path, adding(number), "add", number)
    put(tmp_path, "version_policy { specific { versions: [1, 3] } }", "config.pbtxt")
    with serving(tmp_path) as server, server.client(interface) as client:
        assert [value(client, number) for number in ("", "3", "1")] == [4, 4, 2]
        assert "has version 3, 1, not 2" in fails("NOT_FOUND", client.infer, "add", {"x": X}, "2")
        api = client.client
        assert [api.is_model_ready("add", number) for number in ("1", "2", "3")] == [True, False, True]
        metadata = api.get_model_metadata("add", "1", **({} if interface == "REST" else {"as_json": True}))
        assert sorted(metadata["versions"]) == ["1", "3"]
        found = api.get_inference_statistics("add", "1", **({} if interface == "REST" else {"as_json": True}))
        assert [row["version"] for row in found["model_stats"]] == ["1"]
        rows = json.loads(call(server, "POST", "/v2/repository/index", {}, b"{}")[2])
        assert [(row["version"], row["state"]) for row in rows] == [("1", "READY"), ("3", "READY")]
        body = json.dumps({"inputs": X.tolist()})
        for number, wanted in (("1", 2), ("3", 4)):
            found = json.loads(call(server, "POST", f"/v1/models/add/versions/{number}:predict", {}, body)[2])
            assert found["outputs"][0][0] == wanted
        statuses = json.loads(call(server, "GET", "/v1/models/add", {})[2])["model_version_status"]
        assert sorted(row["version"] for row in statuses) == ["1", "3"]
        config = json.loads(call(server, "GET", "/v1/config", {})[2])["add"]["model_version_status"]
        assert [(row["version"], row["state"]) for row in config] == [("1", "AVAILABLE"), ("3", "AVAILABLE")]
        api.unload_model("add")
        assert numbers(server) == []
        api.load_model("add")
        assert numbers(server) == ["3", "1"]


def test_a_canary_beside_the_default(tmp_path: Path) -> None:
    """A new version serves clients that name it, until it becomes the default. Neither is loaded again for this."""
    write(tmp_path, adding(1), "add", 1)
    put(tmp_path, 'versions = "all"\ndefault_version = 1')
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("gRPC") as client:
        write(tmp_path, adding(2), "add", 2)
        until(lambda: numbers(server) == ["1", "2"])
        assert [value(client, number) for number in ("", "1", "2")] == [2, 2, 3]
        loaded = server.server.service.models.serving("add")
        put(tmp_path, 'versions = "all"\ndefault_version = 2')
        until(lambda: version(server, "add") == "2")
        assert [value(client, number) for number in ("", "1", "2")] == [3, 2, 3]
        assert server.server.service.models.serving("add") == loaded
        put(tmp_path, "versions = 1")
        until(lambda: numbers(server) == ["2"])
        assert value(client) == 3
        put(tmp_path, "default_version = 1")
        until(lambda: "default_version is 1" in server.server.service.models.failures.get("add", ""))
        assert numbers(server) == ["2"]


def test_versions_that_appear_change_and_vanish(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, adding(number), "add", number)
    put(tmp_path, "versions = 2")
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("gRPC") as client:
        assert numbers(server) == ["2", "1"]
        write(tmp_path, adding(3), "add", 3)
        until(lambda: numbers(server) == ["2", "3"])
        assert [value(client, number) for number in ("", "2")] == [4, 3]
        (tmp_path / "add" / "4").mkdir()
        (tmp_path / "add" / "4" / "model.xml").write_text("<net")
        until(lambda: "add" in server.server.service.models.failures)
        assert [value(client, number) for number in ("", "2", "3")] == [4, 3, 4]  # both stay until 4 is loaded
        write(tmp_path, adding(4), "add", 4)
        until(lambda: numbers(server) == ["3", "4"])
        assert server.server.service.models.failures == {}
        write(tmp_path, adding(30), "add", 3)
        until(lambda: value(client, "3") == 31)
        assert value(client) == 5


def test_sequences_on_the_versions_that_clients_name(tmp_path: Path) -> None:
    write(tmp_path, counting(0), "count", 1)
    write(tmp_path, counting(100), "count", 2)
    put(tmp_path, 'versions = "all"', model="count")
    with serving(tmp_path) as server, server.client("gRPC") as client:

        def step(id: int, number: str = "", **flags: bool) -> float:
            return float(client.infer("count", {"x": X}, number, sequence_id=id, **flags)["y"][0, 0])

        assert step(1, "1", sequence_start=True) == 2
        assert step(2, sequence_start=True) == 102
        assert [step(1), step(2), step(1, "1")] == [3, 103, 4]
        fails("INVALID_ARGUMENT", client.infer, "count", {"x": X}, "2", sequence_id=1)


def test_the_log_names_a_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The repository is looked at several times."""
    write(tmp_path, adding(1), "add")
    put(tmp_path, "max = 1")
    write(tmp_path, adding(2), "other")
    put(tmp_path, "optimization { eager_batching: true }", "config.pbtxt", "other")
    with caplog.at_level(logging.WARNING), serving(tmp_path, poll_seconds=0.01) as server:
        write(tmp_path, adding(3), "later")
        until(lambda: version(server, "later"))
    assert caplog.text.count("ovgpu.toml: there is no setting max") == 1
    assert caplog.text.count("optimization.eager_batching is ignored") == 1
