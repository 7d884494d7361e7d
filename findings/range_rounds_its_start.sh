#!/usr/bin/env bash
# OpenVINO's CPU plugin rounds the start of a Range of integers to the nearest one, where its own Convert truncates.
# Version: openvino 2026.4.1.
# Source: OpenVINO's operation specification Range-4, which casts start, stop and step to the output type first.
# Expected for a start of 1.9, a stop of 10, a step of 3 and the type i32: 1, 4, 7. Seen: 2, 5, 8.
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

numbers = [np.float32(x) for x in (1.9, 10, 3)]


def run(build, inputs):
    """Return the result of an operation on scalars in f32."""
    parameters = [opset13.parameter([], ov.Type.f32) for _ in inputs]
    model = ov.Model([build(*parameters)], parameters)
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)[0].tolist()


converted = run(lambda x: opset13.convert(x, "i32"), numbers[:1])
seen = run(lambda *x: opset13.range(*x, "i32"), numbers)
print(f"openvino {ov.__version__}, CPU: Convert of 1.9 to i32 is {converted}")
print(f"expected: Range(1.9, 10, 3) as i32 is {list(range(converted, 10, 3))}; seen: {seen}")
sys.exit((converted, seen) != (1, [2, 5, 8]))
PYTHON
