#!/usr/bin/env bash
# NUM_STREAMS=AUTO on OpenVINO's CPU device turns PERFORMANCE_HINT into THROUGHPUT, and every later hint is dropped, a wrong one too.
# Version: openvino 2026.4.1.
# Source: documentation of ov::hint::performance_mode and ov::num_streams; set_property raises for wrong values.
# Expected from that: the hint that was set last, and an error for a hint that does not exist, as without NUM_STREAMS or with a
# number of streams. Seen after AUTO: THROUGHPUT, and no error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1
"$folder/venv/bin/python" <<'PYTHON'
import openvino


def hint_after(streams, hint):
    """Return the hint of a new Core after NUM_STREAMS, if given, and PERFORMANCE_HINT were set."""
    core = openvino.Core()
    if streams is not None:
        core.set_property("CPU", {"NUM_STREAMS": streams})
    try:
        core.set_property("CPU", {"PERFORMANCE_HINT": hint})
        return core.get_property("CPU", "PERFORMANCE_HINT").name
    except RuntimeError:
        return "error"


found = {(s, h): hint_after(s, h) for s in (None, 2, "AUTO") for h in ("LATENCY", "THROUGHPUT", "FASTEST")}
print("openvino", openvino.__version__)
for (streams, hint), seen in found.items():
    print(f"NUM_STREAMS {streams!s:5} then PERFORMANCE_HINT {hint:10} -> {seen}")
for streams in (None, 2):
    assert [found[streams, h] for h in ("LATENCY", "THROUGHPUT", "FASTEST")] == ["LATENCY", "THROUGHPUT", "error"]
assert {found["AUTO", h] for h in ("LATENCY", "THROUGHPUT", "FASTEST")} == {"THROUGHPUT"}
PYTHON
