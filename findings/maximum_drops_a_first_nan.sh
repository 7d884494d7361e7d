#!/usr/bin/env bash
# OpenVINO's CPU plugin drops a NaN that is the first operand of Maximum or Minimum, and keeps one that is the second.
# Versions: openvino 2026.4.1, numpy 2.4.6.
# Source: OpenVINO's operation specifications Maximum-1 and Minimum-1, which do not mention NaN; numpy.maximum and
# numpy.fmax, of which the first keeps NaN in both places and the second drops it in both.
# Expected: one of these two rules. Seen: neither, since the result depends on the order of the operands.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13

nan = np.float32("nan")
first, second = np.array([nan, 1, 1], np.float32), np.array([1, nan, 1], np.float32)
print(f"openvino {ov.__version__}, CPU in f32, operands {first} and {second}")
kept = {}
for name in ("maximum", "minimum"):
    parameters = [opset13.parameter([3], ov.Type.f32) for _ in range(2)]
    model = ov.Model([getattr(opset13, name)(*parameters)], parameters)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result = compiled([first, second])[0]
    kept[name] = np.isnan(result).tolist()
    print(f"expected: [nan, nan, 1] or [1, 1, 1]; seen of {name}: {result}")
sys.exit(kept != {name: [False, True, False] for name in ("maximum", "minimum")})
PYTHON
