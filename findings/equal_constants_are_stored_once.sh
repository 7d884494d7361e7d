#!/usr/bin/env bash
# OpenVINO saves equal constants once: two layers of the .xml share bytes of the .bin, though the model has two arrays.
# Version: openvino 2026.4.1.
# Source: openvino.save_model, whose documentation says nothing of it.
# Expected: a .bin of all constants' bytes. Seen: half of them, the same offset twice, and one memory when it is read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 numpy
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import re
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op

folder = Path(sys.argv[1])
table = np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32)
ids = op.parameter([3], np.int64)
embedding, head = op.constant(table), op.constant(table.copy())
assert embedding.data.ctypes.data != head.data.ctypes.data
product = op.matmul(op.gather(embedding, ids, op.constant(0)), head, False, True)
ov.save_model(ov.Model([product], [ids]), folder / "model.xml", False)

size = (folder / "model.bin").stat().st_size
offsets = re.findall(r'shape="500, 64" offset="(\d+)"', (folder / "model.xml").read_text())
again = ov.Core().read_model(folder / "model.xml")
constants = [node for node in again.get_ops() if node.get_type_name() == "Constant" and node.data.size > 1]
addresses = {node.data.ctypes.data for node in constants}
print("openvino", ov.__version__)
print("bytes of the two tables:", 2 * table.nbytes, "- of the .bin:", size)
print("offsets in the .xml:", offsets, "- tables when read:", len(constants), "at", len(addresses), "address(es)")
assert size < 1.1 * table.nbytes and offsets == ["0", "0"], "each constant has bytes of its own"
assert len(constants) == 2 and len(addresses) == 1, "the constants have memory of their own"
PYTHON
