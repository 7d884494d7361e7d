"""Bar charts of the tables in bench/results.

pip install ".[bench]" && python bench/pictures.py [--results bench/results]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

OURS, THEIRS = "#76b900", "#9aa5b1"


def bars(path: Path, title: str, names: list[str], ratios: list[float], unit: str) -> None:
    """Draw horizontal bars of ratios to a peer, which is a line at 1; shorter is better."""
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(names) + 1.1), layout="constrained")
    drawn = axes.barh(names[::-1], ratios[::-1], color=OURS, height=0.62)
    axes.bar_label(drawn, [f"{r:.2f}" for r in ratios[::-1]], padding=3)
    axes.axvline(1, color=THEIRS, linewidth=2)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    print(path)


def models(results: Path) -> None:
    """Draw the times of whole models."""
    found = _read(results / "models-cpu.json")
    named = _titles(results / "models-cpu.md")
    ratios = [figures["ovgpu"]["ms"] / figures["openvino"]["ms"] for figures in found["models"].values()]
    bars(
        results / "models-cpu.svg",
        "Whole models on the CPU, NumPy only",
        named,
        ratios,
        "time, in times of OpenVINO's CPU plugin in f32",
    )


def generation(results: Path) -> None:
    """Draw the times of text generation."""
    found = _read(results / "generation-cpu.json")
    names, ratios = [], []
    for title, engines in zip(_titles(results / "generation-cpu.md"), found["models"].values()):
        for key, what in (("prefill", "prefill"), ("short", "decode"), ("long", "decode, long context")):
            names.append(f"{title.split(',')[0]}: {what}")
            ratios.append(engines["ovgpu"][key] / engines["openvino"][key])
    bars(
        results / "generation-cpu.svg",
        "Text generation on the CPU, NumPy only",
        names,
        ratios,
        "time, in times of OpenVINO's CPU plugin in f32",
    )


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _titles(table: Path) -> list[str]:
    """Return the first column of a table of bench/results."""
    rows = [line for line in table.read_text().splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip() for row in rows[2:]]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    results = parser.parse_args().results
    mpl.rcParams["svg.hashsalt"] = "ovgpu"  # the same picture for the same figures
    for draw in (models, generation):
        draw(results)


if __name__ == "__main__":
    main()
