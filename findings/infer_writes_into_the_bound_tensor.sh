#!/usr/bin/env bash
# openvino's infer(array) does not replace the tensor bound by set_input_tensor: it overwrites and resizes the program's tensor.
# Version: openvino 2026.4.1.
# Source: https://docs.openvino.ai/2026/api/ie_python_api/_autosummary/openvino.InferRequest.html, infer and set_input_tensor.
# Expected from "inputs: data to be set on input tensors", copied by default: the request reads the array, and the tensor
# that was bound before keeps its shape and numbers. Seen: it has the shape and the numbers of the array, stays bound, and
# the memory of the program that it shares is overwritten.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13 as ops

x = ops.parameter([-1, 2], np.float32, name="x")
model = ov.Model([ops.relu(x)], [x], "relu")
request = ov.Core().compile_model(model, "CPU").create_infer_request()

memory = np.full((2, 2), 7, np.float32)
shared = ov.Tensor(memory, shared_memory=True)
request.set_input_tensor(shared)
request.infer([np.full((2, 2), 1, np.float32)])
overwritten = memory.tolist()

own = ov.Tensor(np.full((1, 2), 7, np.float32))
request.set_input_tensor(own)
request.infer([np.full((3, 2), 2, np.float32)])
resized = list(own.shape)
own.data[:] = 5
still_bound = request.infer()[0].tolist()

print("openvino", ov.__version__)
print("expected: memory [[7, 7], [7, 7]], a tensor of shape [1, 2], results of the last array")
print(f"seen: memory {overwritten}, a tensor of shape {resized}, results {still_bound}")
ok = overwritten == [[1, 1]] * 2 and resized == [3, 2] and still_bound == [[5, 5]] * 3
sys.exit(not ok)
PYTHON
