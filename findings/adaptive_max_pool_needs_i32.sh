#!/usr/bin/env bash
# AdaptiveMaxPool with the default type of its indices, i64, does not compile on OpenVINO's CPU; with i32 it does.
# Version: openvino 2026.4.1.
# Source: OpenVINO's operation specification AdaptiveMaxPool-8: index_element_type is i64 by default.
# Expected: the default compiles. Seen: RuntimeError of the plugin, "does not support i64 for use with oneDNN".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset8


def compiles(**options):
    """Return "compiles", or the line of the error that gives the reason."""
    x = opset8.parameter([1, 1, 4], ov.Type.f32)
    pool = opset8.adaptive_max_pool(x, np.array([2], np.int64), **options)
    try:
        ov.Core().compile_model(ov.Model(list(pool.outputs()), [x]), "CPU")
    except RuntimeError as e:
        return next(line for line in str(e).splitlines() if "i64" in line)
    return "compiles"


print(f"openvino {ov.__version__}, CPU")
default, narrow = compiles(), compiles(index_element_type="i32")
print(f"expected: the default compiles; seen: {default}")
print(f"with index_element_type=i32: {narrow}")
sys.exit(narrow != "compiles" or "does not support i64" not in default)
PYTHON
