"""Issue budgets of hot kernel instances: instructions per element of their main loops, for compute capability 9.0.

    python -m tests.bench.budgets                        measures all recorded instances again
    python -m tests.bench.budgets bench/results/kernels.json     records the instances that take 2 % of a workload

An element is an instruction of tensor cores, a multiply-add, or a byte that a thread loads from global memory; see
`bench.kernels.budget`. Files whose digest is unchanged need not be compiled again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu
from bench.kernels.budget import WORK, Budget, Work
from bench.kernels.cards import H100
from bench.kernels.dry_device import dry_device
from bench.kernels.launches import Launch, steps_of
from bench.kernels.machine_code import MachineCode, of_file
from bench.kernels.work import template_arguments
from tests.harness.ir import Net
from tests.kernels import gate

TABLE = Path(__file__).with_name("budgets.json")
MIN_SHARE = 0.02  # of a workload's time
# beginnings of names of files
PRODUCTS = ("attention", "compressed", "convolution", "implicit_gemm", "matmul", "product", "recurrent")
ROWS, COLUMNS = 2048, 4096  # of the arrays of generated kernels, large enough for their widest form


@dataclass(frozen=True)
class Held:
    """Budget of an instance. ``load`` is the widest load from global memory in bytes."""

    work: Work
    per_element: float
    load: int
    spills: int


def held(code: MachineCode, kinds: Sequence[Work]) -> Held:
    """Return the budget of a kernel; see `Budget.of` for ``kinds``."""
    found = Budget.of(code, kinds)
    return Held(found.work, round(found.per_element, 3), found.load_width, code.usage.spill_stores + found.spills)


def of_instance(instance: tuple[str, str]) -> Held:
    """Return the budget of an instance: a file of cuda_kernels/ and a name expression."""
    file, name = instance
    return held(of_file(file, name, H100.architecture.name), WORK if file.startswith(PRODUCTS) else ("bytes",))


# ---- generated kernels: a few elementwise layers each
def _nets() -> dict[str, Net]:
    found = {}
    for kind in ("f16", "f32"):
        for name, layers in {
            "add_gelu": [("Add", None), ("Gelu", {"approximation_mode": "ERF"})],
            "add_relu": [("Add", None), ("Relu", None)],
            "swish_multiply": [("Swish", None), ("Multiply", None)],
            "multiply_add_tanh": [("Multiply", None), ("Add", None), ("Tanh", None)],
        }.items():
            net = Net(name)
            x = net.parameter(kind, (ROWS, COLUMNS), "x")
            other = (
                net.parameter(kind, (ROWS, COLUMNS), "y")
                if name == "swish_multiply"
                else net.const(np.linspace(0.5, 1.5, COLUMNS), kind)
            )
            for op, attributes in layers:
                inputs = [x, other] if op in ("Add", "Multiply") else [x]
                x = net.layer(
                    op, "opset7" if op == "Gelu" else "opset4" if op == "Swish" else "opset1", inputs, attributes or {}
                )
            net.result(x)
            found[f"{name} {kind}"] = net
    return found


GENERATED = _nets()


def of_generated(name: str) -> Held:
    """Return the budget of a generated kernel."""
    with dry_device(H100) as device:
        core = ovgpu.Core()
        model = core.read_model(*GENERATED[name].build())
        config = {"INFERENCE_PRECISION_HINT": name.split()[-1]}
        request = core.compile_model(model, device, config).create_infer_request()
        request.infer()
        launches = [x for row in steps_of(request._session.last)[1] for x in row.launches if isinstance(x, Launch)]
    (launch,) = (x for x in launches if not x.file)
    return held(launch.code, ("bytes",))


# ---- the table
def table() -> dict[str, dict[str, Held]]:
    """Return the recorded budgets by file and name; the file of generated kernels is empty."""
    found = json.loads(TABLE.read_text())["budgets"]
    return {file: {name: Held(**row) for name, row in rows.items()} for file, rows in found.items()}


def is_unchanged(file: str) -> bool:
    """Return whether a file and the headers are as they were when its budgets were recorded."""
    digests: dict[str, str] = json.loads(TABLE.read_text())["digests"]
    return digests.get(file) == gate.digest(file)


def record(instances: Sequence[tuple[str, str]]) -> None:
    """Measure instances and the generated kernels, and write the table."""
    with ProcessPoolExecutor() as pool:
        measured = dict(zip(instances, pool.map(of_instance, instances)))
    found: dict[str, dict[str, Any]] = {"": {name: asdict(of_generated(name)) for name in GENERATED}}
    for (file, name), row in sorted(measured.items()):
        found.setdefault(file, {})[name] = asdict(row)
    digests = {file: gate.digest(file) for file in found if file}
    lines = [
        f"  {json.dumps(file)}: {{\n"
        + ",\n".join(f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        + "\n  }"
        for file, rows in found.items()
    ]
    TABLE.write_text('{\n "digests": ' + json.dumps(digests) + ',\n "budgets": {\n' + ",\n".join(lines) + "\n }\n}\n")


def hot(results: Path) -> list[tuple[str, str]]:
    """Return the instances that take 2 % of a workload on an H100, by a file of `bench.kernels.results`, products in
    tiles, which only its single layers have, and convolutions in f16, which are cuDNN's there. Kernels with generated
    epilogues or prologues are represented by those without one."""
    found = json.loads(results.read_text())["H100"]
    names = {
        (values["file"], name)
        for row in found["workloads"].values()
        for name, values in row["kernels"].items()
        if values["file"] and values["us"] >= MIN_SHARE * row["us"]
    }
    names |= {
        ("product_tiles.cu", row["kernel"])
        for row in found["cases"].values()
        if row["kernel"].startswith("product_tiles<")
    }
    names |= {
        ("implicit_gemm.cu", f"implicit_gemm<__half, __half, __half, {tile}, NONE, IdentityEpilogue>")
        for tile in ("64, 64", "128, 128")
    }
    return sorted({(file, _without_epilogue(file, name)) for file, name in names})


def _without_epilogue(file: str, name: str) -> str:
    """Return an instance without the epilogue, which is an argument of its own or a default one; or without a generated
    prologue (Chain) or gate. implicit_gemm.cu has the types of values and of results as arguments besides."""
    if file == "implicit_gemm.cu":
        kind, _, _, rows, columns, split, *_ = template_arguments(name)
        value = "float" if kind == "signed char" else kind
        return f"implicit_gemm<{kind}, {value}, {value}, {rows}, {columns}, {split}, IdentityEpilogue>"
    name = name.replace(", Gate>", ">")
    name = re.sub(r", Chain, \d(, \w+)?>", lambda found: f", Identity, 1{found[1]}>" if found[1] else ">", name)
    plain = re.sub(r"\bEpilogue\b", "IdentityEpilogue", name)
    return plain if plain == name or plain in gate.table()[file] else name.replace(", Epilogue", "")


def main(arguments: Sequence[str]) -> int:
    """Record the budgets; return the exit status."""
    record(
        hot(Path(arguments[0]))
        if arguments
        else [(file, name) for file, rows in table().items() if file for name in rows]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
