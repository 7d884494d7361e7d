"""Node tests of the `onnx` package, and a check of a library against one of them.

    python -m tests.onnx_nodes.suite

runs all of them with OpenVINO, each converted and computed in f32, and writes passed.txt, and excluded.txt: the tests
that it does not pass, with its messages.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness import judge
from tests.harness.elements import name_of
from tests.harness.tolerance import TOLERANCE

PASSED, EXCLUDED = (Path(__file__).with_name(name) for name in ("passed.txt", "excluded.txt"))
Array = np.ndarray[Any, Any]
IR = tuple[bytes, bytes]


class Unfit(Exception):
    """Error for a test whose values are not tensors."""


@cache
def suite() -> dict[str, Any]:
    """Return ONNX's tests by name. They are computed, which takes ten seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def passed() -> list[str]:
    """Return the names of the tests that OpenVINO passes."""
    return PASSED.read_text(encoding="utf-8").split()


def excluded() -> dict[str, str]:
    """Return the tests that OpenVINO does not pass, with the reasons."""
    lines = EXCLUDED.read_text(encoding="utf-8").splitlines() if EXCLUDED.exists() else []
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def convert(case: Any) -> IR:
    """Convert the model of a test to IR with OpenVINO."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.with_suffix(".onnx").write_bytes(case.model.SerializeToString())
        model = judge.core().read_model(path.with_suffix(".onnx"))
        judge.openvino().save_model(model, path.with_suffix(".xml"), compress_to_fp16=False)
        return path.with_suffix(".xml").read_bytes(), path.with_suffix(".bin").read_bytes()


def array(value: Any) -> Array:
    """Convert a value of a test (an array, a number, or a tensor of a type that NumPy lacks) to an array."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise Unfit(f"its data are of type {type(value).__name__}")
    found = np.asarray(value)
    return found.astype(str) if found.dtype.kind == "O" else found


def check(library: Any, case: Any, model: tuple[bytes, ...], device: str, config: dict[str, Any]) -> None:
    """Assert that ``library`` (openvino, ovgpu) gives the expected results. Its own errors are passed on."""
    core = library.Core()
    compiled = core.compile_model(core.read_model(*model), device, config)
    ports = {
        name: i
        for i, port in enumerate(compiled.inputs)
        for name in (*port.get_names(), port.get_node().get_friendly_name())
    }
    graph = case.model.graph
    for given, expected in case.data_sets:
        feeds = {ports[x.name]: array(a) for x, a in zip(graph.input, given, strict=True) if x.name in ports}
        assert len(feeds) == len(compiled.inputs)
        results = [array(a) for a in expected]
        typed = [(feeds[i], name_of(feeds[i].dtype)) for i in range(len(feeds))]
        found = judge.infer(library, compiled.create_infer_request(), typed)
        for x, (got, kind), want in zip(graph.output, found, results, strict=True):
            assert (kind, got.shape) == (name_of(want.dtype), want.shape), f"output {x.name}"
            if want.dtype.kind == "U":
                assert np.array_equal(got, want), f"output {x.name}"
            else:
                rtol = max(case.rtol, TOLERANCE.get(kind, 0.0))
                np.testing.assert_allclose(
                    got.astype(np.float64), want.astype(np.float64), rtol, case.atol, err_msg=f"output {x.name}"
                )


def refusal(case: Any) -> str | None:
    """Return the reason why OpenVINO does not pass a test in one line, or None if it passes."""
    try:
        ir = convert(case)
    except Exception as error:
        return f"openvino does not convert it: {reason(error)}"
    try:
        check(judge.openvino(), case, ir, "CPU", judge.CONFIG)
    except (Unfit, KeyError) as error:
        return f"not of OpenVINO's types: {reason(error)}"
    except AssertionError as error:
        return f"openvino gives another result: {reason(error)}"
    except Exception as error:
        return f"openvino does not run it: {reason(error)}"
    return None


def reason(error: Exception) -> str:
    """Return the end of a message, where OpenVINO names the fault, without locations in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    rest = [line for line in lines if line and not re.match(r"(Exception from|Check .* failed|--? ?$)", line)]
    if isinstance(error, AssertionError):
        rest = [line for line in rest if line.startswith(("output", "Mismatched", "nan location", "inf location"))][:2]
    else:
        rest = rest[-1:]
    return re.sub(r"^-- |\s+", " ", "; ".join(rest)).strip()[:160]


def refusals() -> Iterator[tuple[str, str]]:
    for name, case in suite().items():
        why = refusal(case)
        if why is not None:
            yield name, why


def main() -> None:
    """Write both lists."""
    with np.errstate(all="ignore"):
        found = dict(refusals())
    import onnx
    import openvino

    head = (
        f"# Of the {len(suite())} node tests of onnx {onnx.__version__}, those that openvino "
        f"{openvino.__version__} does not pass, and why; `python -m tests.onnx_nodes.suite` writes them.\n"
    )
    EXCLUDED.write_text(head + "".join(f"{name}: {why}\n" for name, why in found.items()), encoding="utf-8")
    PASSED.write_text("".join(f"{name}\n" for name in suite() if name not in found), encoding="utf-8")
    print(f"{len(suite()) - len(found)} of {len(suite())} pass", file=sys.stderr)


if __name__ == "__main__":
    main()
