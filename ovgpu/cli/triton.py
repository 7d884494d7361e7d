"""``ovgpu triton``: folders of models for Triton Inference Server."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from ovgpu.errors import ModelError


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("triton", help="write the folder of a model for Triton Inference Server")
    parser.add_argument("repository", type=Path, help="Triton's model repository: NAME/VERSION is written there")
    parser.add_argument("path", type=Path, help="a model's file or folder, or a repository with NAME/VERSION/model.xml")
    parser.add_argument("--name", default="", help="name of a single model; by default its file's or folder's name")
    parser.add_argument("--version", type=int, default=1, help="version (1)")
    parser.add_argument(
        "-d",
        "--device",
        default="AUTO",
        help="AUTO (an instance per card, or one on the CPU), CPU, NVIDIA[.n], MULTI:NVIDIA.0,NVIDIA.1",
    )
    parser.add_argument("--precision", default="", metavar="TYPE", help="f32, tf32, f16 or bf16")
    parser.add_argument("--max-batch-size", type=int, default=32, metavar="N", help="requests of a batch (32)")
    parser.add_argument("--max-sequences", type=int, default=64, metavar="N", help="open sequences of an instance (64)")
    parser.add_argument(
        "--max-wait-ms",
        type=float,
        default=2.0,
        metavar="MS",
        help="milliseconds for which a batch waits for more requests (2)",
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="a sequence without requests ends after this time (60)",
    )
    parser.add_argument("--no-batching", dest="batching", action="store_false", help="run each request alone")
    parser.add_argument(
        "--decoupled",
        action="store_true",
        help="requests have a row of inputs for each step of a sequence, and a response for each",
    )
    parser.add_argument(
        "--device-tensors",
        action="store_true",
        help="take and leave tensors in the memory of the card, for other models of Triton; no batches",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write the folders."""
    from ovgpu.integrations.triton.config import TritonOptions
    from ovgpu.integrations.triton.folder import write_folder
    from ovgpu.serve.repository import Repository

    options = TritonOptions(**{field.name: getattr(args, field.name) for field in fields(TritonOptions)})
    models = Repository(args.path, args.name).scan()
    if not models:
        raise ModelError(f"there is no model in {args.path}")
    for found in models.values():
        folder, engine = write_folder(args.repository, found.versions[0], args.version, options)
        print(f"{folder}: {engine.description.rpartition(' on ')[0]}")  # without the CPU, on which the model was tried
