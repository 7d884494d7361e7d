#!/usr/bin/env bash
# OpenVINO's CPU plugin returns zeros for every SquaredDifference of i8 or u8 on processors with AVX2, without an error.
# Version: openvino 2026.4.1, x86-64.
# Source: the specification of SquaredDifference-1, (a - b)^2 for any numeric type.
# Expected from that: 64, 4, 0, 4, which i16 and i32 give in the same plugin, and i8 and u8 with its SSE4.1 kernels
# (ONEDNN_MAX_CPU_ISA=SSE41). Seen: 0, 0, 0, 0. Model.evaluate refuses these types, so there is no second answer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
cat >"$folder/program.py" <<'PYTHON'
import sys

import numpy as np
import openvino as ov
import openvino.opset13 as ops

for kind in sys.argv[1:]:
    a, b = (ops.parameter([4], np.dtype(kind)) for _ in "ab")
    model = ov.compile_model(ov.Model([ops.squared_difference(a, b)], [a, b], "model"), "CPU")
    print(kind, *model([np.array([8, 1, 5, 3], kind), np.array([0, 3, 5, 1], kind)])[0])
PYTHON
echo "openvino $("$folder/venv/bin/python" -c 'import openvino; print(openvino.__version__)')"
run() { ONEDNN_MAX_CPU_ISA=$1 "$folder/venv/bin/python" "$folder/program.py" "${@:2}"; }
narrow=$(run AVX2 int8 uint8)
wide=$(run AVX2 int16 int32)
older=$(run SSE41 int8 uint8)
printf 'with AVX2\n%s\n%s\nwith SSE4.1\n%s\n' "$narrow" "$wide" "$older"
[ "$narrow" = $'int8 0 0 0 0\nuint8 0 0 0 0' ]
[ "$wide" = $'int16 64 4 0 4\nint32 64 4 0 4' ]
[ "$older" = $'int8 64 4 0 4\nuint8 64 4 0 4' ]
echo "as described"
