"""The table of calls in ovgpu/serve/README.md: what a server answers, compared with the protocols' own documents.

    python -m tests.serve.conformance    # prints the table, and writes it

Each function below makes a call through REST or gRPC, and yields pairs: whether the answer is as the documents of
KServe, Triton or OpenVINO Model Server say, and how it differs if not. It raises UnsupportedError for a call that the
server refuses.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.utils.shared_memory as shm
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.batching.nets import sums
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, serving, status, write
from tests.serve.test_inference import echo
from tests.serve.test_readiness import write_broken
from tests.serve.wire import NAMES, Input, message, set_parameters

PAGE = Path(__file__).parents[2] / "ovgpu" / "serve" / "README.md"
BEGIN, END = "<!-- begin: written by `python -m tests.serve.conformance` -->", "<!-- end -->"
REFUSED = {"REST": "501", "gRPC": "UNIMPLEMENTED"}
KSERVE, TRITON, HEALTH, MODEL_SERVER = (
    "KServe v2",
    "Triton's extensions",
    "gRPC's health checking",
    "OpenVINO Model Server",
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
PORT = {"name": "x", "datatype": "FP32", "shape": [2, 3]}
# Calls of gRPC, and of REST with the fields of their messages.
PATHS = {
    "ServerLive": "GET /v2/health/live",
    "ServerReady": "GET /v2/health/ready",
    "ModelReady": "GET /v2/models/{name}/ready",
    "ServerMetadata": "GET /v2",
    "ModelMetadata": "GET /v2/models/{name}",
    "ModelConfig": "GET /v2/models/{name}/config",
    "ModelStatistics": "GET /v2/models/{name}/stats",
    "RepositoryIndex": "POST /v2/repository/index",
    "RepositoryModelLoad": "POST /v2/repository/models/{model_name}/load",
    "RepositoryModelUnload": "POST /v2/repository/models/{model_name}/unload",
    "SystemSharedMemoryStatus": "GET /v2/systemsharedmemory/region/{name}/status",
    "SystemSharedMemoryRegister": "POST /v2/systemsharedmemory/region/{name}/register",
    "SystemSharedMemoryUnregister": "POST /v2/systemsharedmemory/region/{name}/unregister",
    "CudaSharedMemoryStatus": "GET /v2/cudasharedmemory/region/{name}/status",
    "CudaSharedMemoryRegister": "POST /v2/cudasharedmemory/region/{name}/register",
    "CudaSharedMemoryUnregister": "POST /v2/cudasharedmemory/region/{name}/unregister",
    "TraceSetting": "POST /v2/trace/setting",
    "LogSettings": "POST /v2/logging",
}

Findings = Iterator[tuple[bool, str]]


class UnsupportedError(Exception):
    """Error of a call that the server refuses because it lacks it."""


@dataclass
class Api:
    """One interface of a server, and its models: "echo" reverses rows, "sums" has states."""

    interface: str
    http: str
    folder: Path
    client: Client
    channel: grpc.Channel

    @property
    def is_rest(self) -> bool:
        return self.interface == "REST"

    def rest(
        self, call: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request, such as ``GET /v2``. Return status, headers and body of the response."""
        verb, path = call.split()
        connection = HTTPConnection(self.http, timeout=SECONDS)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(verb, path, data, headers or {})
        response = connection.getresponse()
        found = response.status, dict(response.headers.items()), response.read()
        connection.close()
        return found

    def ask(self, call: str, **fields: Any) -> tuple[str, Any]:
        """Make a call by its name in gRPC. Return its status by the name in gRPC, and the answer as JSON."""
        if self.is_rest:
            path = PATHS[call].format(**fields)
            named = {name for name in fields if f"{{{name}}}" in PATHS[call]}
            body = {name: value for name, value in fields.items() if name not in named}
            code, _, content = self.rest(path, body if path.startswith("POST") else None)
            return NAMES.get(str(code), str(code)), json.loads(content or b"{}")
        request = getattr(service_pb2, f"{call}Request")()
        if "parameters" in fields:
            set_parameters(request, fields.pop("parameters"))
        json_format.ParseDict(fields, request)
        try:
            answer = getattr(service_pb2_grpc.GRPCInferenceServiceStub(self.channel), call)(request, timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name), {"error": error.details()}
        return "OK", json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def infer(self, model: str = "echo", x: Any = X, **options: Any) -> str:
        """Return the status of an inference."""
        try:
            self.client.infer(model, {"x": x}, **options)
            return "OK"
        except InferenceServerException as error:
            return status(error)

    def load(self, config: dict[str, Any] | None = None, model: str = "echo", **files: Any) -> str:
        """Return the status of a load."""
        try:
            self.client.client.load_model(model, config=None if config is None else json.dumps(config), **files)
            return "OK"
        except InferenceServerException as error:
            return status(error)


@dataclass(frozen=True)
class Row:
    """Call of the table, and the function that makes it."""

    protocol: str
    name: str
    interfaces: tuple[str, ...]
    check: Callable[[Api], Findings]


ROWS: list[Row] = []


def row(protocol: str, name: str, *interfaces: str) -> Callable[[Callable[[Api], Findings]], Callable[[Api], Findings]]:
    """Add a function to the table. A name that is a call of gRPC is followed by its path."""

    def add(check: Callable[[Api], Findings]) -> Callable[[Api], Findings]:
        ROWS.append(Row(protocol, name, interfaces or INTERFACES, check))
        return check

    return add


# ---- KServe v2


@row(KSERVE, "ServerLive")
def server_live(api: Api) -> Findings:
    yield api.ask("ServerLive") == ("OK", {"live": True}), "it has other fields"


@row(KSERVE, "ServerReady")
def server_ready(api: Api) -> Findings:
    yield api.ask("ServerReady") == ("OK", {"ready": True}), "it has other fields"
    with broken(api):
        code, _, _ = api.rest("GET /v2/health/ready")
        if api.is_rest:
            yield code // 100 == 4, f"the status of a server that is not ready is {code}, not 4xx"
        else:
            yield not api.ask("ServerReady")[1].get("ready"), "it is ready without a model"


@contextmanager
def broken(api: Api) -> Iterator[None]:
    """Add a model that cannot be loaded while the block runs."""
    write_broken(api.folder)
    api.rest("POST /v1/config/reload")
    try:
        yield
    finally:
        shutil.rmtree(api.folder / "bad")
        api.rest("POST /v1/config/reload")


@row(KSERVE, "ModelReady")
def model_ready(api: Api) -> Findings:
    state, found = api.ask("ModelReady", name="echo")
    yield state == "OK" and found["ready"], "a model that is loaded is not ready"
    state, found = api.ask("ModelReady", name="nothing")
    yield state != "OK" if api.is_rest else not found.get("ready"), "a model that does not exist is ready"


@row(KSERVE, "ServerMetadata")
def server_metadata(api: Api) -> Findings:
    state, found = api.ask("ServerMetadata")
    yield state == "OK" and set(found) == {"name", "version", "extensions"}, "it has other fields"


@row(KSERVE, "ModelMetadata")
def model_metadata(api: Api) -> Findings:
    state, found = api.ask("ModelMetadata", name="echo")
    yield state == "OK" and set(found) == {"name", "versions", "platform", "inputs", "outputs"}, "it has other fields"
    yield all(set(port) == set(PORT) for port in (*found["inputs"], *found["outputs"])), "ports have other fields"


@row(KSERVE, "`ModelInfer`, `POST /v2/models/{name}/infer`")
def infer(api: Api) -> Findings:
    if api.is_rest:
        body = {"id": "7", "inputs": [PORT | {"data": X.tolist()}], "outputs": [{"name": "y"}]}
        _, _, content = api.rest("POST /v2/models/echo/versions/1/infer", body)
        output = {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [2, 1, 0, 5, 4, 3]}
        wanted = {"id": "7", "model_name": "echo", "model_version": "1", "outputs": [output]}
        yield json.loads(content) == wanted, "the response has other fields"
    else:
        request = service_pb2.ModelInferRequest(model_name="echo", model_version="1", id="7")
        request.inputs.add(**PORT).contents.fp32_contents.extend(X.ravel())
        request.outputs.add(name="y")
        answer = service_pb2_grpc.GRPCInferenceServiceStub(api.channel).ModelInfer(request, timeout=SECONDS)
        found = np.frombuffer(answer.raw_output_contents[0], np.float32)
        yield answer.id == "7" and found.tolist() == [2, 1, 0, 5, 4, 3], "the response has other fields"
    yield api.infer(x=X[:, :2]) == "INVALID_ARGUMENT", "a wrong shape has another status"
    yield api.infer("nothing") == "NOT_FOUND", "an unknown model has another status"


# ---- Triton's extensions


@row(TRITON, "binary tensor data")
def binary_data(api: Api) -> Findings:
    found = api.client.infer("echo", {"x": X})
    yield found["y"].tolist() == X[:, ::-1].tolist(), "outputs differ"


@row(TRITON, "batches")
def batches(api: Api) -> Findings:
    most = api.client.client.get_model_config("echo", **({} if api.is_rest else {"as_json": True}))
    rows = (most if api.is_rest else most["config"])["max_batch_size"]
    yield api.infer(x=np.zeros((rows, 3), np.float32)) == "OK", "batches are refused"
    yield (
        api.infer(x=np.zeros((rows + 1, 3), np.float32)) != "OK",
        ("more rows than `max_batch_size` are split into batches, not refused"),
    )


@row(TRITON, "compression", "REST")
def compression(api: Api) -> Findings:
    body = gzip.compress(json.dumps({"inputs": [PORT | {"data": X.tolist()}]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    code, answered, _ = api.rest("POST /v2/models/echo/infer", body, headers)
    yield code == 200, "compressed requests are refused"
    yield (
        {key.lower(): value for key, value in answered.items()}.get("content-encoding") == "gzip",
        ("responses are not compressed"),
    )


@row(TRITON, "classification")
def classification(api: Api) -> Findings:
    wanted = [api.client.triton.InferRequestedOutput("y", class_count=2)]
    found = api.client.infer("echo", {"x": X}, outputs=wanted)["y"]
    yield found.tolist() == [[b"2.000000:0", b"1.000000:1"], [b"5.000000:0", b"4.000000:1"]], "classes differ"
    labels = {"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}]}
    yield api.load(labels) == "OK", "there are no labels"


@row(TRITON, "sequences")
def sequences(api: Api) -> Findings:
    x = np.zeros((1, 8), np.float32)
    for id in (41, "41"):
        steps = [api.infer("sums", x, sequence_id=id, sequence_start=i == 0, sequence_end=i == 1) for i in range(2)]
        yield steps == ["OK", "OK"], f"ids of the type {type(id).__name__} are refused"
    found = api.infer("sums", x, sequence_id=42)
    yield found == "INVALID_ARGUMENT", f"the status of a sequence that is not open is {found}, not INVALID_ARGUMENT"


@row(TRITON, "`ModelStreamInfer`", "gRPC")
def stream(api: Api) -> Findings:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    sent = [message(Input(), model=model) for model in ("echo", "nothing", "echo")]
    found = list(stub.ModelStreamInfer(iter(sent), timeout=SECONDS))
    yield [bool(x.error_message) for x in found] == [False, True, False], "errors end the stream"
    final = [x.infer_response.parameters["triton_final_response"].bool_param for x in found if not x.error_message]
    yield all(final), "final responses are not marked"


@row(TRITON, "parameters, schedule policy")
def parameters(api: Api) -> Findings:
    yield api.infer(parameters={"own": 3}) == "OK", "parameters of users are refused"
    found = api.infer(timeout=1)
    yield found == "UNAVAILABLE", f"the status after `timeout` is {found}, not UNAVAILABLE"
    found = api.load({"dynamic_batching": {"priority_levels": 2}})
    yield found == "OK", "`priority` has no effect"


@row(TRITON, "ModelConfig")
def model_config(api: Api) -> Findings:
    _, found = api.ask("ModelConfig", name="echo")
    config = found if api.is_rest else found["config"]
    yield {"name", "platform", "backend", "max_batch_size", "input", "output"} <= set(config), "fields are missing"
    missing = [name for name in ("version_policy", "optimization", "instance_group") if name not in config]
    yield not missing, f"{', '.join(f'`{name}`' for name in missing)} and others are left out"


@row(TRITON, "ModelStatistics")
def statistics(api: Api) -> Findings:
    api.load()
    api.infer()
    found = api.ask("ModelStatistics", name="echo")[1]["model_stats"][0]
    durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    yield set(found["inference_stats"]) >= set(durations), "durations are missing"
    yield (int(found["inference_count"]), int(found["execution_count"])) == (2, 1), "counts differ"
    yield (
        int(found["inference_stats"]["compute_input"].get("ns", 0)) > 0,
        ("the times of `compute_input` and `compute_output` are part of `compute_infer`"),
    )


@row(TRITON, "RepositoryIndex")
def repository_index(api: Api) -> Findings:
    def index(**fields: Any) -> Any:
        found = api.ask("RepositoryIndex", **fields)[1]
        return {x["name"]: x for x in (found if api.is_rest else found["models"])}

    yield index()["echo"].items() >= {"version": "1", "state": "READY"}.items(), "fields differ"
    api.client.client.unload_model("sums")
    yield (index()["sums"]["state"], "sums" in index(ready=True)) == ("UNAVAILABLE", False), "states differ"
    api.client.client.load_model("sums")


@row(TRITON, "RepositoryModelLoad")
def load(api: Api) -> Findings:
    yield api.ask("RepositoryModelLoad", model_name="echo")[0] == "OK", "it fails"
    yield api.ask("RepositoryModelLoad", model_name="nothing")[0] != "OK", "any model is loaded"
    yield api.load({"max_batch_size": 2, "dynamic_batching": {}}) == "OK", "the parameter `config` is refused"
    yield (
        api.load({"instance_group": [{"count": 2}]}) == "OK",
        (
            "of the parameter `config`, only sizes, delays and idle times of batches and sequences have an effect; "
            "other fields are refused"
        ),
    )
    yield api.load({}, files={"file:1/model.xml": b""}) != "UNIMPLEMENTED", "the parameters `file:` are refused"
    api.load()


@row(TRITON, "RepositoryModelUnload")
def unload(api: Api) -> Findings:
    found = api.ask("RepositoryModelUnload", model_name="echo", parameters={"unload_dependents": True})
    yield found[0] == "OK", "it fails"
    yield api.infer() == "UNAVAILABLE", "the model is still there"
    api.load()


@contextmanager
def region(api: Api) -> Iterator[Any]:
    """Register a region "r" of 64 bytes while the block runs. Yields its key and handle."""
    key = f"/ovgpu_conformance_{api.interface}_{os.getpid()}"
    handle = shm.create_shared_memory_region("r", key, 64, create_only=True)
    try:
        api.client.client.register_system_shared_memory("r", key, 64)
        yield key, handle
    finally:
        api.client.client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(handle)


@row(TRITON, "tensors in system shared memory")
def system_memory(api: Api) -> Findings:
    with region(api) as (_, handle):
        shm.set_shared_memory_region(handle, [X])
        x, y = api.client.triton.InferInput("x", [2, 3], "FP32"), api.client.triton.InferRequestedOutput("y")
        x.set_shared_memory("r", 24)
        y.set_shared_memory("r", 24, 32)
        api.client.client.infer("echo", [x], outputs=[y])
        found = shm.get_contents_as_numpy(handle, np.float32, [2, 3], 32)
        yield found.tolist() == X[:, ::-1].tolist(), "outputs differ"


@row(TRITON, "SystemSharedMemoryStatus")
def system_memory_status(api: Api) -> Findings:
    with region(api) as (key, _):
        found = api.ask("SystemSharedMemoryStatus", name="r")[1]
        (one,) = found if api.is_rest else found["regions"].values()
        wanted = {"name": "r", "key": key, "byte_size": 64 if api.is_rest else "64"}
        yield one.items() >= wanted.items(), "fields differ"


@row(TRITON, "SystemSharedMemoryRegister")
def system_memory_register(api: Api) -> Findings:
    with region(api) as (key, _):
        fields = {"name": "r", "key": key, "offset": 0, "byte_size": 64}
        if api.is_rest:
            code, _, _ = api.rest("POST /v2/systemsharedmemory/region/r/register", fields)
            yield code == 400, f"the status of a name in use is {code}, not 400"
        else:
            yield api.ask("SystemSharedMemoryRegister", **fields)[0] == "ALREADY_EXISTS", "names are used twice"
        outside = api.ask("SystemSharedMemoryRegister", name="s", key=key, offset=1, byte_size=64)
        yield outside[0] == "INVALID_ARGUMENT", "regions are not checked"


@row(TRITON, "SystemSharedMemoryUnregister")
def system_memory_unregister(api: Api) -> Findings:
    with region(api):
        for name in ("r", "r", "s"):
            yield api.ask("SystemSharedMemoryUnregister", name=name)[0] == "OK", "it fails"


def unsupported(call: str, **fields: Any) -> None:
    """Add a call to the table that the server refuses."""

    @row(TRITON, call)
    def refused(api: Api) -> Findings:
        state, _ = api.ask(call, **fields)
        if state == "UNIMPLEMENTED":
            raise UnsupportedError
        yield state == "OK", f"its status is {state}"


unsupported("CudaSharedMemoryStatus", name="r")
unsupported("CudaSharedMemoryRegister", name="r", device_id=0, byte_size=64)
unsupported("CudaSharedMemoryUnregister", name="r")
unsupported("TraceSetting")


@row(TRITON, "LogSettings")
def log_settings(api: Api) -> Findings:
    names = {"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"}
    found = api.client.client.get_log_settings(**({} if api.is_rest else {"as_json": True}))
    yield set(found if api.is_rest else found["settings"]) == names, "settings differ"
    for change, text in (
        ({"log_info": True, "log_verbose_level": 0}, "levels cannot be changed"),
        ({"log_format": "ISO8601"}, "`log_format` is always `default`"),
    ):
        try:
            api.client.client.update_log_settings(change)
        except InferenceServerException:
            yield False, text


@row(TRITON, "`POST /v2/models/{name}/generate` and `generate_stream`", "REST")
def generate(api: Api) -> Findings:
    for call in ("generate", "generate_stream"):
        code, _, _ = api.rest(f"POST /v2/models/echo/{call}", {"text_input": ""})
        if code == 501:
            raise UnsupportedError
        yield code == 200, f"its status is {code}"


# ---- gRPC's health checking


@row(HEALTH, "`grpc.health.v1.Health`: `Check` and `Watch`", "gRPC")
def health(api: Api) -> Findings:
    messages: Any = health_pb2
    stub = health_pb2_grpc.HealthStub(api.channel)
    serving, unknown = messages.HealthCheckResponse.SERVING, messages.HealthCheckResponse.SERVICE_UNKNOWN
    for name, wanted in (("", serving), ("echo", serving), ("nothing", unknown)):
        watching = stub.Watch(messages.HealthCheckRequest(service=name), timeout=SECONDS)
        yield next(watching).status == wanted, "Watch differs"
        watching.cancel()
    yield stub.Check(messages.HealthCheckRequest()).status == serving, "Check differs"
    try:
        stub.Check(messages.HealthCheckRequest(service="nothing"))
    except grpc.RpcError as error:
        yield error.code() is grpc.StatusCode.NOT_FOUND, "an unknown service has another status"


# ---- OpenVINO Model Server


@row(MODEL_SERVER, "`GET /v1/config`", "REST")
def config_status(api: Api) -> Findings:
    code, _, content = api.rest("GET /v1/config")
    (version,) = json.loads(content)["echo"]["model_version_status"]
    wanted = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}
    yield (code, version) == (200, wanted), "it has other fields"


@row(MODEL_SERVER, "`POST /v1/config/reload`", "REST")
def config_reload(api: Api) -> Findings:
    yield api.rest("POST /v1/config/reload")[0] == 200, "the status without changes is another"
    write(api.folder, echo("f32"), "new")
    yield api.rest("POST /v1/config/reload")[0] == 201, "the status after changes is another"
    shutil.rmtree(api.folder / "new")
    write_broken(api.folder)
    code, _, content = api.rest("POST /v1/config/reload")
    yield code >= 400, f"a model that cannot be loaded is no error: the status is {code}, and its state says why"
    assert "bad" in json.loads(content)
    shutil.rmtree(api.folder / "bad")
    api.rest("POST /v1/config/reload")


def tensorflow(api: Api, service: str, path: str, body: Any = None) -> Any:
    """Return the answer of TensorFlow Serving's API by REST. Through gRPC, check that there is no such service."""
    if api.is_rest:
        code, _, content = api.rest(path, body)
        return code, json.loads(content)
    try:
        api.channel.unary_unary(f"/tensorflow.serving.{service}")(b"", timeout=SECONDS)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnsupportedError from None
    return 0, {}


@row(MODEL_SERVER, "`GetModelStatus`, `GET /v1/models/{name}`")
def model_status(api: Api) -> Findings:
    code, found = tensorflow(api, "ModelService/GetModelStatus", "GET /v1/models/echo")
    yield code == 200 and found["model_version_status"][0]["state"] == "AVAILABLE", "it has other fields"


@row(MODEL_SERVER, "`GetModelMetadata`, `GET /v1/models/{name}/metadata`")
def tensorflow_metadata(api: Api) -> Findings:
    code, found = tensorflow(api, "PredictionService/GetModelMetadata", "GET /v1/models/echo/metadata")
    signature = found["metadata"]["signature_def"]["signatureDef"]["serving_default"]
    yield code == 200 and signature["inputs"]["x"]["dtype"] == "DT_FLOAT", "it has other fields"


@row(MODEL_SERVER, "`Predict`, `POST /v1/models/{name}:predict`")
def predict(api: Api) -> Findings:
    path = "POST /v1/models/echo:predict"
    rows = tensorflow(api, "PredictionService/Predict", path, {"instances": X.tolist()})
    yield rows == (200, {"predictions": X[:, ::-1].tolist()}), "rows differ"
    columns = tensorflow(api, "", path, {"inputs": {"x": X.tolist()}})
    yield columns == (200, {"outputs": X[:, ::-1].tolist()}), "columns differ"
    image = {"instances": [{"b64": base64.b64encode(b"image").decode()}]}
    yield "image" in str(tensorflow(api, "", path, image)[1].get("error")), "images in base64 are not decoded"


# ---- the table


def outcome(checked: Row, api: Api) -> tuple[str, str]:
    """Return the cell of a call, and how its answer differs."""
    if api.interface not in checked.interfaces:
        return "", ""
    try:
        differences = [text for holds, text in checked.check(api) if not holds]
    except UnsupportedError:
        return REFUSED[api.interface], ""
    return "differs" if differences else "same", "; ".join(dict.fromkeys(differences))


def line(checked: Row, apis: list[Api]) -> str:
    """Return the line of a call."""
    name = f"`{checked.name}`, `{PATHS[checked.name]}`" if checked.name in PATHS else checked.name
    cells, differences = zip(*[outcome(checked, api) for api in apis])
    return f"| {name} | {' | '.join(cells)} | {'; '.join(dict.fromkeys(filter(None, differences)))} |"


def markdown() -> str:
    """Return the table of a server's answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, echo("f32"), "echo")
        write(folder, sums(), "sums")
        with (
            serving(folder, shared_memory=True, poll_seconds=0, engine={"max_wait_ms": 0}) as server,
            server.client("REST") as rest,
            server.client("gRPC") as stub,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            apis = [Api(client.interface, server.http, folder, client, channel) for client in (rest, stub)]
            lines = ["| Call | REST | gRPC | How it differs |", "| --- | --- | --- | --- |"]
            for protocol in dict.fromkeys(checked.protocol for checked in ROWS):
                lines.append(f"| **{protocol}** | | | |")
                lines += [line(checked, apis) for checked in ROWS if checked.protocol == protocol]
    return "\n".join(lines)


def page() -> str:
    """Return the page with the table of today."""
    text = PAGE.read_text(encoding="utf-8")
    return text[: text.index(BEGIN)] + f"{BEGIN}\n{markdown()}\n{END}" + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0])
