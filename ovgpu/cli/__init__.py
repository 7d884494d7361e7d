"""Command line: ``ovgpu run | generate | serve | triton | info | benchmark | tune | compare | ops | demo``.

``python -m ovgpu`` is the same.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ovgpu._util import interrupt
from ovgpu._util.nearest import did_you_mean
from ovgpu.cli import benchmark, compare, demo, generate, info, ops, run, serve, triton, tune
from ovgpu.cli._parser import CommandParser
from ovgpu.debug import DEBUG
from ovgpu.errors import Error
from ovgpu.version import OWN

COMMANDS = {
    "run": run,
    "generate": generate,
    "serve": serve,
    "triton": triton,
    "info": info,
    "benchmark": benchmark,
    "tune": tune,
    "compare": compare,
    "ops": ops,
    "demo": demo,
}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of all commands."""
    main_parser = argparse.ArgumentParser("ovgpu", description="Runs OpenVINO IR models on NVIDIA GPUs, or with NumPy.")
    main_parser.add_argument("--version", action="version", version=f"ovgpu {OWN}")
    commands = main_parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    for command in COMMANDS.values():
        command.add_to(commands)
    return main_parser


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"ovgpu: warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. Errors are reported in one line, or raised if OVGPU_DEBUG is set."""
    interrupt.raise_again()
    if argv is None:
        warnings.showwarning = _print_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console may lack arrows and box characters
            stream.reconfigure(errors="replace")
    main_parser = parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        main_parser.error(f"there is no command {given[0]!r}{did_you_mean(given[0], COMMANDS)}")
    args = main_parser.parse_args(given)
    try:
        code: int | None = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed the pipe
        sys.stdout = open(os.devnull, "w")
        return 0
    except (Error, RuntimeError, OSError, ValueError, LookupError, TypeError, MemoryError) as e:
        if DEBUG.value:
            raise
        print(f"ovgpu: error: {' '.join(str(e).split()) or type(e).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ovgpu: interrupted", file=sys.stderr)
        return 130
    return code or 0
