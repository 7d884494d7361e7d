#!/usr/bin/env bash
# In the callback of OpenVINO's AsyncInferQueue, request.results takes neither numbers nor names, as it does for any other request.
# Versions: openvino 2026.4.1, numpy 2.2.6.
# Source: documentation of openvino.InferRequest.results, "Dictionary of results from output tensors with ports as keys", an OVDict,
# which also takes a number or a name; and of AsyncInferQueue.set_callback, whose first argument is the InferRequest.
# Expected from that: request.results[0] in a callback. Seen: a plain dict of ports, for which 0 and "y" are KeyErrors; the
# requests that the queue gives by its number have an OVDict.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.2.6
"$folder/venv/bin/python" <<'PYTHON'
import numpy as np
import openvino
from openvino import opset13 as ops

x = ops.parameter([2], np.float32, name="x")
y = ops.relu(x)
y.output(0).get_tensor().set_names({"y"})
compiled = openvino.Core().compile_model(openvino.Model([y], [x], "relu"), "CPU")
queue, seen = openvino.AsyncInferQueue(compiled, 1), []


def callback(request, userdata):
    found = {}
    for key in (0, "y", compiled.output(0)):
        try:
            found[str(key)[:3]] = request.results[key].tolist()
        except KeyError:
            found[str(key)[:3]] = "KeyError"
    seen.append((type(request.results).__name__, list(found.values())))


queue.set_callback(callback)
queue.start_async([np.array([-1, 2], np.float32)])
queue.wait_all()
print("openvino", openvino.__version__)
print("in the callback:", *seen[0])
print("of the queue   :", type(queue[0].results).__name__, queue[0].results[0].tolist(), queue[0].results["y"].tolist())
assert seen == [("dict", ["KeyError", "KeyError", [0.0, 2.0]])]
assert type(queue[0].results).__name__ == "OVDict" and queue[0].results["y"].tolist() == [0.0, 2.0]
PYTHON
