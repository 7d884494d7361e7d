"""Estimates of the time of a model's kernels on a card, from their machine code. No GPU is needed.

    python -m bench.kernels model.xml --card H100
    python -m bench.kernels --workload bert_f16 "llama int4 128" --card "RTX 4090"
    python -m bench.kernels --instance softmax.cu "softmax_rows<float, false, 4, 2>"

The model is compiled for the card, and run on a device whose kernels do nothing. NVRTC compiles the kernels, nvdisasm
shows their instructions, and `estimate.py` says how times follow from them. The tables list the steps, the kernels, and
the budget of each kernel: instructions of its main loop per element, that is per tensor core instruction (MMA), per
multiply-add (FMA) or per byte that a thread loads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.kernels import report, runs
from bench.kernels.budget import Budget
from bench.kernels.cards import CARDS, Card, card
from bench.kernels.estimate import of_plan
from bench.kernels.machine_code import of_file


def show(title: str, found: runs.Launched, chosen: Card, options: argparse.Namespace, out: Console) -> None:
    """Print the tables of a run."""
    plan, launches = found
    steps = of_plan(plan, launches, chosen)
    out.print(
        f"[bold]{title}[/] on {chosen.name}: {report.MICRO * report.total(steps):.0f} us, {len(steps)} steps, "
        f"{plan.kernels} kernels, {plan.launches} launches by the host"
    )
    rows = report.rows_of(steps)
    if options.steps:
        out.print(report.steps_table(steps))
    out.print(report.kernels_table(rows))
    if options.budgets:
        out.print(report.budget_table(report.budgets_of(rows).items()))


def _card(name: str) -> Card:
    try:
        return card(name)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", type=Path, help="an .xml file")
    add("--card", type=_card, default=CARDS["H100"], metavar="NAME", help=f"{', '.join(CARDS)} (default H100)")
    add("--workload", nargs="+", default=[], choices=runs.WORKLOADS, metavar="NAME", help=", ".join(runs.WORKLOADS))
    add("--instance", nargs=2, metavar=("FILE", "NAME"), help="a file of cuda_kernels/ and a name expression")
    add("--shape", action="append", default=[], metavar="NAME=[1,3]", help="shapes of dynamic inputs")
    add("--precision", default="", help="INFERENCE_PRECISION_HINT: f32, tf32 (default for f32 models), f16, bf16")
    add("--prompt", type=int, default=0, help="tokens before the one of a language model")
    add("--cudnn", action="store_true", help="as if cuDNN were installed")
    add("--no-steps", dest="steps", action="store_false", help="without the table of steps")
    add("--no-budgets", dest="budgets", action="store_false", help="without the table of budgets")
    options = parser.parse_args(arguments)
    out = Console(width=None if sys.stdout.isatty() else 220)
    if options.instance:
        file, name = options.instance
        code = of_file(file, name, options.card.architecture.name)
        out.print(report.budget_table([(name, Budget.of(code))]))
    for name in options.workload:
        show(name, runs.of_workload(name, options.card, options.cudnn), options.card, options, out)
    if options.model:
        config = {"INFERENCE_PRECISION_HINT": options.precision} if options.precision else {}
        try:
            found = runs.of_model(
                options.model,
                options.card,
                shapes=options.shape,
                config=config,
                prompt=options.prompt,
                cudnn=options.cudnn,
            )
        except ValueError as e:
            parser.error(str(e))
        show(str(options.model), found, options.card, options, out)
    elif not options.workload and not options.instance:
        parser.error("give a model, --workload or --instance")
    return 0


if __name__ == "__main__":
    sys.exit(main())
