#!/usr/bin/env bash
# OpenVINO's CPU plugin refuses a ReduceSum over an empty list of axes, which Model.evaluate computes as the identity.
# Version: openvino 2026.4.1.
# Source: OpenVINO's operation specification ReduceSum-1; numpy.sum with axis=() returns its input as well.
# Expected: the input. Seen: RuntimeError when the model is compiled ("incorrect number of input/output dimensions").
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13

x = np.arange(6, dtype=np.float32).reshape(2, 3)
parameter = opset13.parameter(list(x.shape), ov.Type.f32)
model = ov.Model([opset13.reduce_sum(parameter, np.array([], np.int64))], [parameter])
evaluated = ov.Tensor(np.zeros_like(x))
model.evaluate([evaluated], [ov.Tensor(x)])
identity = bool((evaluated.data == x).all())
try:
    ov.Core().compile_model(model, "CPU")
    seen = "compiles"
except RuntimeError as e:
    seen = next(line for line in str(e).splitlines() if line.startswith("ReduceSum")).split(" gets ")[-1]
print(f"openvino {ov.__version__}: Model.evaluate returns the input: {identity}")
print(f"expected: the CPU plugin compiles it; seen: {seen}")
sys.exit(not identity or "dimensions" not in seen)
PYTHON
