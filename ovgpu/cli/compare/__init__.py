"""``ovgpu compare``: a model against a reference layer by layer, or the outputs of all models of a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ovgpu.cli._inputs import add_options
from ovgpu.cli._print import MODEL
from ovgpu.cli.compare import layers, models


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser(
        "compare",
        help="compare the outputs of every layer with a reference, or those of every model in a folder with OpenVINO's",
    )
    parser.add_argument("model", help=f"{MODEL}; a folder of several models: the outputs of all, with random inputs")
    parser.add_argument(
        "--against",
        choices=("cpu", "openvino"),
        metavar="cpu|openvino",
        help="the reference: ovgpu's CPU, or OpenVINO's CPU plugin in f32 (default for -d CPU, and for a folder)",
    )
    parser.add_argument("-d", "--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    add_options(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="T",
        help="the largest error, relative to a tensor's largest value (default 0.001)",
    )
    parser.add_argument("--all", action="store_true", help="show the layers with the largest errors as well")
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds for each model of a folder (default 600)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, and return the exit code: 1 if something differs."""
    folder = Path(args.model)
    if not folder.is_dir() or len(models.files(folder)) == 1:
        if args.time_limit is not None:
            raise ValueError("--time-limit is for a folder of several models")
        return layers.run(args)
    given = [option for option, value, default in _of_one_model(args) if value != default]
    if given:
        raise ValueError(f"{' and '.join(given)} cannot be used with a folder of several models")
    return models.run(args)


def _of_one_model(args: argparse.Namespace) -> tuple[tuple[str, Any, Any], ...]:
    """Return the options that are for one model alone, their values, and their defaults."""
    return (
        ("--input", args.input, []),
        ("--shape", args.shape, []),
        ("--steps", args.steps, 1),
        ("--all", args.all, False),
        ("--mean_values", args.mean_values, ""),
        ("--scale_values", args.scale_values, ""),
        ("--bgr", args.bgr, False),
        ("--against cpu", args.against == "cpu", False),
    )
