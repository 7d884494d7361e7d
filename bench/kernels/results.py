"""Estimates of all workloads and cases as results/kernels.md, beside those of an earlier state and measured times.

    python -m bench.kernels.results                         writes results/kernels.json and results/kernels.md
    python -m bench.kernels.results --before FILE.json      with the estimates of an earlier kernels.json

It takes about nine minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import isnan
from pathlib import Path
from typing import Any

from bench.kernels import calibration, cases, report, runs
from bench.kernels.cards import CARDS, Card
from bench.kernels.estimate import floor, of_plan, of_step, of_steps, traffic_of
from bench.kernels.launches import Launch
from tests.emulator.kernel_source import launch_bounds
from tests.emulator.nvrtc import KERNELS

RESULTS = Path(__file__).resolve().parents[1] / "results"
MEASURED = RESULTS / "gpu-h100-kernels.md"
PRODUCTS, ATTENTIONS = RESULTS / "gpu-h100-compressed.json", RESULTS / "gpu-h100-attention.json"
SHOWN = ("H100", "H200", "RTX 4090")
WORKLOADS = (
    "llama f16 128",
    "llama f16 8192",
    "llama int8 128",
    "llama int4 128",
    "llama int4 8192",
    "llama f16 prefill 2048",
    "bert_f16",
    "bert_b32_f16",
    "bert_base",
    "vit_f16",
    "whisper_tiny_f16",
    "resnet50_f16",
    "resnet50_b64_f16",
    "resnet50",
    "mobilenet_v2_f16",
    "unet_f16",
    "gpt2_decode",
    "lstm_b1",
    "lstm_b32",
    "bilstm",
    "lstm_state",
    "tensor_iterator_lstm",
    "softmax_f32",
    "elementwise_f32",
    "lstm_b32 tf32",
    "bilstm tf32",
    "bert_base tf32",
    "bert_base_b32",
    "bert_base_b32 tf32",
    "resnet50 tf32",
    "gpt2_decode tf32",
    "llama int8 128 tf32",
    "llama int4 128 tf32",
    "bert_int8",
    "bert_b32_int8",
    "resnet50_int8",
    "resnet50_b64_int8",
    "yolo_f16",
    "yolo_int8",
    "resnet50_f16 own",
    "resnet50_b64_f16 own",
    "mobilenet_v2_f16 own",
    "unet_f16 own",
    "yolo_f16 own",
    "yolo_int8 own",
)
CONVOLVING = ("resnet", "mobilenet", "unet", "yolo", "vit", "whisper")  # run with cuDNN, as they were measured
OWN = " own"  # ends the names of those that run without it
LONG_ROWS = {
    f"{case} of {cases.VOCABULARY}": f"{workload}_row"
    for case, workload in (
        ("Softmax", "softmax"),
        ("ReduceMax", "max"),
        ("MVN", "normalize"),
        ("TopK 1", "argmax"),
        ("TopK 50", "topk"),
    )
}
MIN_SHARE = 0.02  # of a workload, for kernels in the table
REPEATS = 4  # of a case, behind which its estimate in a row no longer changes
NOTES = """Estimates add the time of an empty kernel, that of one warp alone, and the longest of bytes, instructions,
tensor cores and waiting; `bench/kernels/estimate.py` says more. Weights that a launch requests early arrive while
memory is idle, during the launches before it (`bench/kernels/sequence.py`). Measured times are those of
[the last run on an H100](gpu-h100-kernels.md), by kernel, without early launches. Many kernels have changed since: how
good estimates are, the last table shows, which has those of the code that was measured. Libraries (cuBLAS, cuDNN) are
estimated by bytes and by tiles of products. Convolutional models are run with cuDNN, and, as `own`, without it. The
floor is the time of the bytes in memory at the full bandwidth, or of the products at the peak rate.

One aim is missed: a product of 16 rows should be as fast as one of 4. In a row, that of 16384 x 2048 takes 1.21 (int4)
and 1.14 (int8) of its time on an H100, 1.55 and 1.30 on an H200. The following figures are older than a correction of
the estimator, when the product of 16 rows in int4 took 6.7 us. `product_mma` has 256 blocks, two per
multiprocessor, each of which copies x to shared memory: 64 KiB per block, 17 MB in all, at 64 bytes per clock. Its loop
is not the limit: 153 instructions for 16 HMMA, 4.7 us where bytes take 6.3. Two attempts were slower. With half the
blocks, of twice the rows, x is read half as often, but 8 warps per multiprocessor request too few weights at a time:
7.3 us. `product_tiles` reads x in stages, once per tile of 128 rows of the weights, and has only 128 tiles for 132
multiprocessors: each has one block, whose warps wait for each other at every stage: 9.4 us.

Models in 8 bits (`bert_int8`, `resnet50_int8`, `yolo_int8`), and with them `implicit_gemm`, have not run on a card
yet. With large batches, three limits of this kernel are close together: shared memory, which is written once and read
once per warp tile (128 bytes per clock), instructions of the epilogue, and L2, from which each tile reads its rows of
both matrices. Estimates of libraries leave all three out.

Products of libraries in TF32 are estimated like those in f16, without a division of K among blocks: small ones on an
RTX 4090, which multiplies TF32 at the rate of f32, seem slower than in f32. "Before", recurrent layers in exact f32 did
not run on tensor cores."""
CALIBRATION = """Rows named "early" are of graphs whose kernels begin early. The rest are times of kernels one after the
other, or of single layers in a row. The worst: products of 9 to 16 rows with codes of 8 bits, in a form that is no
longer chosen (its loop over parts had no loop inside, so that the end of a tile counts in each trip); attention with a
cache of 128, where one block per head merges nothing, which the path through its code counts; and TopK of 50 elements,
whose loops over digits count once."""


def function_of(name: str) -> str:
    """Return a kernel's name without template arguments; "library" for cuBLAS and cuDNN."""
    return "library" if name in ("cuBLAS", "cuBLASLt", "library", "CuPy") else name.partition("<")[0]


def of_workload(name: str, card: Card) -> dict[str, Any]:
    """Return the estimates of a workload, in all and by kernel, and the time that it takes at least."""
    cudnn = name.startswith(CONVOLVING) and not name.endswith(OWN)
    plan, launches = runs.of_workload(name.removesuffix(OWN), card, cudnn)
    steps = of_plan(plan, launches, card)
    rows = report.rows_of(steps)
    kernels: dict[str, dict[str, Any]] = {}
    for row in rows:
        found = kernels.setdefault(row.name, {"us": 0.0, "count": 0, "bound": row.estimate.bound, "file": ""})
        found["us"] += report.MICRO * row.seconds
        found["count"] += row.count
        if isinstance(row.estimate.launch, Launch):
            found["file"] = row.estimate.launch.file
    return {
        "us": report.MICRO * report.total(steps),
        "floor_us": report.MICRO * floor(launches, card),
        "launched": plan.kernels,
        "kernels": kernels,
    }


def of_case(name: str, card: Card) -> dict[str, Any]:
    """Return the estimate of a case, alone and as one of many in a row, and what bounds its longest launch."""
    steps = cases.of_case(name, card)
    estimates = [x for step in steps for x in of_step(step, card, name in cases.NETS)]
    longest = max(estimates, key=lambda x: x.seconds)
    last = estimates if name in cases.NETS else of_steps(cases.of_case(name, card, REPEATS), card)[-1]
    return {
        "us": report.MICRO * sum(x.seconds for x in estimates),
        "bound": longest.bound,
        "row_us": report.MICRO * sum(x.seconds for x in last),
        "bytes_us": report.MICRO * sum(traffic_of(row.step, card).memory for row in steps) / card.bandwidth,
        "kernel": longest.launch.name,
    }


def measured(path: Path) -> dict[str, dict[str, float]]:
    """Return microseconds by function of each workload, from a file that `bench.gpu_profile` wrote. All kernels that
    are not ovgpu's count as "library"."""
    found, own = (
        dict[str, dict[str, float]](),
        {name for path in KERNELS.glob("*.cu") for name in launch_bounds(path.read_text())},
    )
    for line in path.read_text().splitlines() if path.exists() else ():
        if title := re.match(r"## (.+): (\d+) us,", line):
            rows = found[title[1]] = {"": float(title[2])}
        elif row := re.match(r"\| ([\d.]+) \| +\d+ \| [\d.]+ \| (?:void )?(\w+)", line):
            name = row[2] if row[2] in own or row[2].startswith("ovgpu_") else "library"
            rows[name] = rows.get(name, 0.0) + float(row[1])
    return found


def measured_cases() -> dict[str, float]:
    """Return the microseconds of single layers on an H100, as far as there are results."""
    rows = json.loads(PRODUCTS.read_text()) if PRODUCTS.exists() else []
    attentions = json.loads(ATTENTIONS.read_text())["cases"] if ATTENTIONS.exists() else {}
    return (
        {"{n} x {k} {form}, {m} rows".format(**row): float(row["us"]) for row in rows}
        | {f"attention, {name}": float(row["us"]) for name, row in attentions.items()}
        | {case: times[""] for case, workload in LONG_ROWS.items() if (times := measured(MEASURED).get(workload))}
    )


def tables(found: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown file."""
    yield from (
        "# Estimated times of kernels, from their machine code",
        "",
        "`python -m bench.kernels.results`; microseconds.",
        "",
        NOTES,
        "",
    )
    yield from _workloads(found, before)
    yield from _kernels(found)
    yield from _cases(found, before)
    yield from ("", "## The code that was measured", "", CALIBRATION, "", *calibration.table())


def _workloads(found: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    times = measured(MEASURED)
    titles = [title for card in SHOWN for title in (f"{card} floor", *((f"{card} before",) if before else ()), card)]
    yield from (
        "## Workloads",
        "",
        f"| | kernels | {' | '.join(titles)} | measured on an H100 |",
        "| --- |" + " ---: |" * (len(titles) + 2),
    )
    for name in WORKLOADS:
        cells = [name, str(found["H100"]["workloads"][name]["launched"])]
        for card in SHOWN:
            cells.append(f"{found[card]['workloads'][name]['floor_us']:.0f}")
            cells += [_text(_us(before, card, "workloads", name), 0)] if before else []
            cells.append(f"{_us(found, card, 'workloads', name):.0f}")
        known = times.get(name, {}).get("")
        cells.append("" if known is None else f"{known:.0f}")
        yield f"| {' | '.join(cells)} |"


def _kernels(found: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        "",
        "## Kernels of more than 2 % of a workload, on an H100",
        "",
        "| workload | kernel | count | bound | estimate | measured |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    )
    times = measured(MEASURED)
    for name in WORKLOADS:
        row = found["H100"]["workloads"][name]
        merged: dict[str, dict[str, Any]] = {}
        for kernel, values in row["kernels"].items():
            into = merged.setdefault(function_of(kernel), {"us": 0.0, "count": 0, "bound": values["bound"]})
            into["us"] += values["us"]
            into["count"] += values["count"]
        for function, values in sorted(merged.items(), key=lambda item: -float(item[1]["us"])):
            if values["us"] >= MIN_SHARE * row["us"]:
                known = times.get(name, {}).get(function)
                yield (
                    f"| {name} | {function} | {values['count']} | {values['bound']} | {values['us']:.1f} | "
                    f"{'' if known is None else f'{known:.1f}'} |"
                )


def _cases(found: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    suffixes = (" before", "", " bound") if before else ("", " bound")
    titles = [f"{card}{suffix}" for card in SHOWN for suffix in suffixes]
    yield from (
        "",
        "## Single layers",
        "",
        "The floor is that of an H100. `In a row` is one of many such layers behind each other, which are",
        "launched early; those that were measured were in a row, but not launched early.",
        "",
        f"| | floor | {' | '.join(titles)} | H100 in a row | measured on an H100 |",
        "| --- |" + " ---: |" * (len(titles) + 3),
    )
    times = measured_cases()
    for name in cases.CASES:
        cells = []
        for card in SHOWN:
            cells += [_text(_us(before, card, "cases", name), 1)] if before else []
            cells += [f"{_us(found, card, 'cases', name):.1f}", found[card]["cases"][name]["bound"]]
        cells.append("" if name in cases.NETS else f"{found['H100']['cases'][name]['row_us']:.1f}")
        known = times.get(name)
        cells.append("" if known is None else f"{known:.1f}")
        yield f"| {name} | {found['H100']['cases'][name]['bytes_us']:.1f} | {' | '.join(cells)} |"


def _us(found: Mapping[str, Any], card: str, kind: str, name: str) -> float:
    return float(found.get(card, {}).get(kind, {}).get(name, {}).get("us", float("nan")))


def _text(us: float, digits: int) -> str:
    return "" if isnan(us) else f"{us:.{digits}f}"


def of_card(title: str) -> dict[str, Any]:
    """Return the estimates of all workloads and cases on a card."""
    card, workloads = CARDS[title], {}
    for name in WORKLOADS:
        workloads[name] = row = of_workload(name, card)
        print(f"{title}, {name}: {row['us']:.0f} us", flush=True)
    return {"workloads": workloads, "cases": {name: of_case(name, card) for name in cases.CASES}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--before", type=Path, help="kernels.json of an earlier state")
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(len(SHOWN)) as pool:
        found = dict(zip(SHOWN, pool.map(of_card, SHOWN)))
    before = json.loads(options.before.read_text()) if options.before else {}
    (options.out / "kernels.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "kernels.md").write_text("\n".join(tables(found, before)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
