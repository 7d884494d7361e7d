"""Random requests: each has an answer, which is no internal error, and the server goes on."""

from __future__ import annotations

import gzip
import http.client
import json
import struct
import zlib
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovgpu.serve.errors import Status
from tests.harness.servers.serving import SECONDS
from tests.harness.sweep import LIMITS
from tests.serve.wire import JSON_INPUT, Input, Wire, message, set_parameters

EXAMPLES = 250
STATUSES = {status.value for status in Status} - {Status.INTERNAL.value} | {405, 413, 415}
Post = tuple[str, Any, bytes]  # path, JSON and the bytes behind it
FP32, INT64 = {"datatype": "FP32", "shape": [1, 3]}, {"datatype": "INT64", "shape": [2]}
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
PLACE = {"shared_memory_region": "r", "shared_memory_byte_size": 12, "shared_memory_offset": 0}
PARAMETERS_OF_TENSORS = ("classification", *PLACE)
POSTS: list[Post] = [
    ("/v2/models/echo/infer", {"id": "1", "inputs": [JSON_INPUT], "outputs": [{"name": "y"}]}, b""),
    (
        "/v2/models/echo/versions/1/infer",
        {
            "inputs": [{"name": "x", **FP32, "parameters": {"binary_data_size": 12}}],
            "parameters": {"binary_data_output": True, "timeout": 10**9},
        },
        bytes(12),
    ),
    (
        "/v2/models/affine/infer",
        {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
                for name in "ab"
            ]
        },
        bytes(32),
    ),
    (
        "/v2/models/strings/infer",
        {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["", "b"]}]},
        b"",
    ),
    (
        "/v2/models/sums/infer",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.5] * 8}], "parameters": SEQUENCE},
        b"",
    ),
    (
        "/v2/models/reshape/infer",
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [6], "data": [1] * 6},
                {"name": "shape", **INT64, "data": [2, 3]},
            ]
        },
        b"",
    ),
    ("/v1/models/echo:predict", {"instances": [[1, 2, 3]]}, b""),
    ("/v1/models/affine:predict", {"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 2, 3, 4]]}}, b""),
    ("/v1/models/strings:predict", {"instances": ["a", {"b64": "YQ=="}]}, b""),
    ("/v2/repository/index", {"ready": True}, b""),
    ("/v2/repository/models/nothing/load", {"parameters": {}}, b""),
    ("/v2/repository/models/nothing/load", {"parameters": {"config": '{"max_batch_size": 2}'}}, b""),
    (
        "/v2/models/echo/infer",
        {"inputs": [JSON_INPUT], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        b"",
    ),
    ("/v2/models/echo/infer", {"inputs": [{"name": "x", **FP32, "parameters": PLACE}]}, b""),
    ("/v2/models/echo/infer", {"inputs": [JSON_INPUT], "outputs": [{"name": "y", "parameters": PLACE}]}, b""),
    ("/v2/systemsharedmemory/region/r/register", {"key": "/ovgpu_nothing", "offset": 0, "byte_size": 12}, b""),
]
RAWS = (bytes(12), bytes(16), bytes(32), b"\1\0\0\0a")
MESSAGES: list[tuple[str, list[Input], dict[str, Any]]] = [
    ("echo", [Input()], {}),
    ("affine", [Input(bytes(16), (1, 4), name=name) for name in "ab"], {"timeout": 10**9}),
    ("strings", [Input(RAWS[3], (1,), "BYTES")], {}),
    ("sums", [Input(bytes(32), (1, 8))], SEQUENCE),
    ("sums", [Input(bytes(32), (1, 8)), Input(b"\1", (1,), "UINT8", "sequence_control_input")], {}),
    ("reshape", [Input(bytes(24), (6,)), Input(struct.pack("<2q", 2, 3), (2,), "INT64", "shape")], {}),
]
KEYS = st.sampled_from(
    (
        "name",
        "datatype",
        "shape",
        "data",
        "parameters",
        "binary_data_size",
        "timeout",
        "b64",
        "id",
        "sequence_id",
        "sequence_control_input",
        "inputs",
        "outputs",
        "instances",
        "key",
        "byte_size",
        *PARAMETERS_OF_TENSORS,
    )
)
TOKENS = st.sampled_from(
    (b"[", b"]", b"{", b'"', b",", b"\\ud800", b"1e999", b"-", b"\xff", b"NaN", b"9" * 30, b"[" * 999)
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=5)
    | KEYS
    | st.sampled_from(
        (
            2**31 - 1,
            2**31,
            2**63,
            2**64,
            10**400,
            -(2**63),
            "\ud800",
            "INT64",
            "BYTES",
            "BOOL",
            "BF16",
            "FP16",
            "UINT64",
        )
    )
)
VALUES = st.recursive(SCALARS, lambda more: st.lists(more, max_size=4) | st.dictionaries(KEYS, more, max_size=3))
TEXTS = st.text(max_size=5) | st.sampled_from(("x", "y", "a", "shape", "1", "sequence_id", "sequence_control_input"))
DATATYPES = st.sampled_from(("FP32", "FP64", "FP16", "BF16", "INT8", "INT32", "INT64", "UINT64", "BOOL", "BYTES", ""))
EXTENTS = st.integers(-1, 4) | st.sampled_from((2**31 - 1, 2**31, 2**62, 2**63 - 1))
PARAMETERS = st.dictionaries(
    st.sampled_from(("timeout", "sequence_id", "sequence_start", "sequence_end", "priority", *PARAMETERS_OF_TENSORS)),
    st.booleans() | st.integers(-2, 2**63 - 1) | st.floats() | st.text(max_size=3),
    max_size=2,
)


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """Draw a value of JSON in which one part is changed, removed or repeated."""
    if not isinstance(value, (dict, list)) or not value or not draw(st.integers(0, 4)):
        return draw(VALUES)
    found: Any = value.copy()
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    change = draw(st.sampled_from(("change", "change", "change", "remove", "repeat")))
    if change == "change":
        found[key] = draw(changed_json(value[key]))
    elif change == "remove":
        del found[key]
    elif isinstance(value, list):
        found += [value[key]] * draw(st.integers(1, 3))
    else:
        found[draw(KEYS)] = value[key]
    return found


@st.composite
def spliced(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw bytes of which some are replaced."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        data = data[:start] + draw(st.binary(max_size=4) | TOKENS) + data[start + draw(st.integers(0, 6)) :]
    return data


@st.composite
def posts(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """Draw path, body and headers of a request in which something is wrong, or nothing."""
    path, found, raw = draw(st.sampled_from(POSTS))
    change = draw(st.sampled_from(("json", "json", "json", "text", "raw", "length", "encoding", "all", "path")))
    head = json.dumps(draw(changed_json(found)) if change == "json" else found).encode()
    if change == "text":
        head = draw(spliced(head))
    length, headers = str(len(head)), {}
    if change == "raw":
        raw = draw(spliced(raw))
    elif change == "length":
        length = draw(st.integers(-2, len(head) + 40).map(str) | st.sampled_from(("", "x", "1_0", "\xb2", "9" * 20)))
    elif change == "encoding":
        headers["Content-Encoding"] = draw(st.sampled_from(("gzip", "deflate", "identity", "br", "")))
        packed = draw(st.sampled_from((gzip.compress, zlib.compress)))(head + raw)
        head, raw = draw(st.just(packed) | spliced(packed)), b""
    elif change == "all":
        head, raw = draw(st.binary(max_size=40)), b""
    elif change == "path":
        path = path.replace("echo", quote(draw(TEXTS), safe=""))
    if raw or draw(st.booleans()):
        headers["Inference-Header-Content-Length"] = length
    return path, head + raw, headers


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Draw a ModelInferRequest in which some fields have any value."""
    model, inputs, parameters = draw(st.sampled_from(MESSAGES))
    found = message(*inputs, model=model, parameters=parameters)
    for _ in range(draw(st.integers(0, 3))):
        tensor = draw(st.sampled_from(found.inputs)) if found.inputs else found.inputs.add()
        field = draw(
            st.sampled_from(
                (
                    "name",
                    "datatype",
                    "shape",
                    "contents",
                    "raw",
                    "raw",
                    "parameters",
                    "outputs",
                    "id",
                    "model_name",
                    "inputs",
                    "tensor",
                )
            )
        )
        if field == "name":
            tensor.name = draw(TEXTS)
        elif field == "datatype":
            tensor.datatype = draw(DATATYPES)
        elif field == "shape":
            tensor.shape[:] = draw(st.lists(EXTENTS, max_size=4))
        elif field == "contents":
            name, values = draw(
                st.sampled_from(
                    (
                        ("fp32_contents", [0.5] * 3),
                        ("int_contents", [-1, 2**31 - 1, 0]),
                        ("bytes_contents", [b"", b"\xff"]),
                        ("bool_contents", [True]),
                    )
                )
            )
            getattr(tensor.contents, name).extend(values)
            del found.raw_input_contents[:]
        elif field == "raw":
            found.raw_input_contents[:] = draw(st.lists(st.binary(max_size=16) | st.sampled_from(RAWS), max_size=3))
        elif field == "parameters":
            set_parameters(draw(st.sampled_from((found, tensor))), draw(PARAMETERS))
        elif field == "outputs":
            set_parameters(found.outputs.add(name=draw(TEXTS)), draw(PARAMETERS))
        elif field == "inputs":
            found.inputs.add().CopyFrom(tensor)
        elif field == "tensor":
            del found.inputs[draw(st.integers(0, len(found.inputs) - 1))]
        else:
            setattr(found, field, draw(TEXTS))
    return found


def examples(config: pytest.Config) -> settings:
    long = config.getoption("--long")
    return settings(LIMITS, max_examples=EXAMPLES * 40 if long else EXAMPLES, derandomize=not long)


@pytest.mark.timeout(3600)
def test_random_posts(wire: Wire, pytestconfig: pytest.Config) -> None:
    counts: Counter[int] = Counter()

    @examples(pytestconfig)
    @given(posts())
    def check(drawn: tuple[str, bytes, dict[str, str]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=SECONDS)
        connection.request("POST", *drawn)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        counts[response.status] += 1
        assert response.status in STATUSES, content

    check()
    assert counts[200] > 1, "some of the requests are correct"
    assert counts[400] > EXAMPLES // 4
    wire.check_served()


@pytest.mark.timeout(3600)
def test_random_messages(wire: Wire, pytestconfig: pytest.Config) -> None:
    counts: Counter[str] = Counter()
    encoded = messages().map(lambda x: x.SerializeToString())
    sent = encoded | encoded | encoded.flatmap(spliced)

    @examples(pytestconfig)
    @given(st.lists(sent, min_size=1, max_size=3))
    def check(drawn: list[bytes]) -> None:
        answers = [wire.call(data) for data in drawn]
        *responses, status = wire.stream(*drawn)
        counts.update([status, *(answer.status for answer in answers)])
        for found in [status, *(answer.status for answer in answers)]:
            assert found not in ("INTERNAL", "UNKNOWN"), answers
        assert all("internal" not in response.error_message for response in responses)
        if status == "OK":
            assert len(responses) == len(drawn)

    check()
    assert counts["OK"] > EXAMPLES // 2, "streams have the errors of inferences in their responses"
    assert counts["INVALID_ARGUMENT"] > EXAMPLES // 4
    wire.check_served()
