"""Compare published models with OpenVINO, as ``ovgpu compare DIR`` does, also on the emulated card.

    python -m tests.wild FOLDER [--device DEVICE | --emulated] [--write]

FOLDER holds .xml and .bin files at any depth. ``--write`` puts the results into the table of README.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ovgpu.cli.compare.models import files, outcomes, print_outcomes
from ovgpu.cli.compare.outputs import COLUMNS, FAULTS, Outcome
from tests.harness.replay import EMULATED

from .card import emulate

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- begin: written by `python -m tests.wild FOLDER --write` -->", "<!-- end -->"


def write(found: Sequence[Outcome]) -> None:
    """Replace the table of README.md. It leaves out the seconds, which vary."""
    rows = [COLUMNS[:-1], ("---", "---:", "---", "---", "---:", "---:"), *(outcome.cells()[:-1] for outcome in found)]
    block = "\n".join([BEGIN, *(f"| {' | '.join(row)} |" for row in rows), END])
    text = README.read_text()
    README.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, text, flags=re.S))


def main() -> int:
    """Compare, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.wild", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="CPU", help="CPU (default), NVIDIA[.n] or AUTO")
    parser.add_argument("--emulated", action="store_true", help="use the emulated card")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for each model (default 1800)")
    parser.add_argument("--write", action="store_true", help="put the results into the table of README.md")
    args = parser.parse_args()
    if not files(args.folder):
        parser.error(f"there is no OpenVINO IR below {args.folder}")
    device, start = (EMULATED, emulate) if args.emulated else (args.device, None)
    found = print_outcomes(outcomes(args.folder, device, 0, 1e-3, args.time_limit, start))
    if args.write:
        write(found)
    return int(any(outcome.result in FAULTS for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
