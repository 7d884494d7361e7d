"""The server with clients that need environments of their own: kserve and ovmsclient.

    python -m venv K && K/bin/pip install kserve==0.21.0
    python -m venv O && O/bin/pip install ovmsclient==2023.1
    python -m tests.serve.other_clients --kserve K/bin/python --ovmsclient O/bin/python

Each runs in its environment against a server in this process, and its results must be those of single requests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import ovgpu as ov
from tests.batching.nets import streaming_lstm
from tests.harness.servers.serving import serving, write
from tests.serve.test_inference import affine, echo
from tests.serve.test_served_sequences import alone, frame

STEPS = 4

KSERVE = """
import asyncio, json, sys
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

async def main(http, grpc, frames):
    rest, stub = InferenceRESTClient(RESTConfig(protocol="v2")), InferenceGRPCClient(url=grpc)
    base = f"http://{http}"
    assert await rest.is_server_live(base) and await rest.is_server_ready(base)
    assert await rest.is_model_ready(base, "lstm") and not await rest.is_model_ready(base, "nothing")
    assert await stub.is_server_live() and await stub.is_server_ready() and await stub.is_model_ready("lstm")
    found = []
    for interface, binary in (("REST", False), ("REST", True), ("gRPC", True)):
        results = []
        for step, values in enumerate(frames):
            given = InferInput(name="frame", shape=[1, 40], datatype="FP32")
            given.set_data_from_numpy(np.array(values, np.float32), binary_data=binary)
            request = InferRequest(model_name="lstm", infer_inputs=[given], parameters={
                "sequence_id": 4, "sequence_start": step == 0, "sequence_end": step == len(frames) - 1})
            response = await (rest.infer(base, request, model_name="lstm") if interface == "REST"
                              else stub.infer(request))
            results.append(response.outputs[0].as_numpy().tolist())
        found.append(results)
    await rest.close()
    await stub.close()
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""

OVMSCLIENT = """
import json, sys
import numpy as np
from ovmsclient import make_http_client

client = make_http_client(sys.argv[1])
assert client.get_model_status("lstm") == {1: {"state": "AVAILABLE", "error_code": 0, "error_message": "OK"}}
metadata = client.get_model_metadata("affine")
assert metadata["inputs"] == {name: {"dtype": "DT_FLOAT", "shape": [-1, 4]} for name in "ab"}, metadata
both = client.predict({"a": np.ones((2, 4), np.float32), "b": [[1., 2, 3, 4]] * 2}, "affine")
assert both["sum"].tolist() == [[3, 5, 7, 9]] * 2 and both["product"].shape == (2, 5)
assert client.predict({"x": np.array([[1, 2, 2**40]])}, "echo_i64").tolist() == [[2**40, 2, 1]]
try:
    client.predict({"z": 1}, "affine")
except Exception as error:
    assert "has no input 'z'" in str(error), error
else:
    raise AssertionError("an input that does not exist was taken")
found = []
for step, values in enumerate(json.loads(sys.argv[3])):
    control = 1 if step == 0 else 2 if step == 3 else 0
    outputs = client.predict({"frame": np.array(values, np.float32), "sequence_id": 3,
                              "sequence_control_input": control}, "lstm")
    assert outputs["sequence_id"].tolist() == [3]
    found.append(outputs["y"].tolist())
print(json.dumps([found]))
"""


def run(python: str, script: str, http: str, grpc: str) -> None:
    """Run a client's script, and compare the results that it prints."""
    frames = [frame(0, step) for step in range(STEPS)]
    done = subprocess.run(
        [python, "-c", script, http, grpc, json.dumps([x["frame"].tolist() for x in frames])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wanted = alone(streaming_lstm(), frames)
    for results in json.loads(done.stdout.splitlines()[-1]):
        for ours, theirs in zip(results, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kserve", metavar="PYTHON")
    parser.add_argument("--ovmsclient", metavar="PYTHON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models: dict[str, ov.Model] = {"lstm": streaming_lstm(), "affine": affine(), "echo_i64": echo("i64")}
        for model in models.items():
            write(folder, model[1], model[0])
        with serving(folder) as server:
            for python, script in ((options.kserve, KSERVE), (options.ovmsclient, OVMSCLIENT)):
                if python:
                    run(python, script, server.http, server.grpc)
                    print(f"{python}: equal to single requests")


if __name__ == "__main__":
    main()
