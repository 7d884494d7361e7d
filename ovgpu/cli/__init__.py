"""Command line: ``ovgpu run | info | benchmark | compare | ops | demo``, also as ``python -m ovgpu``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from ovgpu.cli import benchmark, compare, demo, info, ops, run
from ovgpu.debug import DEBUG
from ovgpu.errors import Error
from ovgpu.version import OWN

COMMANDS = (run, info, benchmark, compare, ops, demo)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of all commands."""
    main_parser = argparse.ArgumentParser("ovgpu", description="Runs OpenVINO IR models on NVIDIA GPUs, or with NumPy.")
    main_parser.add_argument("--version", action="version", version=f"ovgpu {OWN}")
    commands = main_parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. Errors are reported in one line, or raised if OVGPU_DEBUG is set."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console may lack arrows and box characters
            stream.reconfigure(errors="replace")
    args = parser().parse_args(argv)
    try:
        code: int | None = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed the pipe
        sys.stdout = open(os.devnull, "w")
        return 0
    except (Error, RuntimeError, OSError, ValueError, LookupError, TypeError) as e:
        if DEBUG.value:
            raise
        print(f"ovgpu: error: {' '.join(str(e).split()) or type(e).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ovgpu: interrupted", file=sys.stderr)
        return 130
    return code or 0
