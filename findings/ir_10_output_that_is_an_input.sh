#!/usr/bin/env bash
# An input of an IR of version 10 that is also an i64 output loses its name when OpenVINO reads the file, the output keeps it.
# Version: openvino 2026.4.1.
# Source: read_model adds the names of layers to the inputs and outputs of IR 10, so that programs can go on to ask for them
# (update_v10_model in src/inference/src/model_reader.cpp), and converts i64 outputs to i32.
# Expected from that: `model.input("x")` is found, as it is if the same file has f32 in place of i64. Seen: with i64, the
# Convert before the output is called x and takes over the tensor's names; the Parameter has no name that a program could ask
# for, and `model.input("x")` raises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
cat >"$folder/program.py" <<'PYTHON'
import openvino as ov

IR = """<net name="m" version="10"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2" element_type="{kind}"/>
<output><port id="0" precision="{precision}"><dim>2</dim></port></output></layer>
<layer id="1" name="y" type="Result" version="opset1"><input><port id="0"><dim>2</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""

for kind, precision in (("f32", "FP32"), ("i64", "I64")):
    model = ov.Core().read_model(IR.format(kind=kind, precision=precision).encode(), b"")
    try:
        model.input("x")
        found = "found"
    except RuntimeError:
        found = "not found"
    output = model.output(0)
    print(kind, "input", found, sorted(model.input(0).names), "output", sorted(output.names), output.get_element_type())
PYTHON
echo "openvino $("$folder/venv/bin/python" -c 'import openvino; print(openvino.__version__)')"
seen=$("$folder/venv/bin/python" "$folder/program.py")
echo "$seen"
[ "$seen" = "f32 input found ['x'] output ['x'] <Type: 'float32'>
i64 input not found [] output ['x'] <Type: 'int32_t'>" ]
echo "as described"
