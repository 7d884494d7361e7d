"""``ovgpu tune``: measures on a card which kernels are fastest for a model's sizes, for all programs that run there."""

from __future__ import annotations

import argparse
from typing import Any

from ovgpu.api.core import Core
from ovgpu.backends.cuda import CudaBackend, choices
from ovgpu.backends.cuda.tuner import Tuner
from ovgpu.cli._feed import Feed
from ovgpu.cli._inputs import add_options, build_feed
from ovgpu.cli._print import MODEL, console, table
from ovgpu.compile.settings import Settings
from ovgpu.errors import DeviceError
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.printing import counted


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("tune", help="measure on a card which kernels are fastest for a model")
    parser.add_argument("model", help=MODEL)
    parser.add_argument("-d", "--device", default="NVIDIA", help="NVIDIA[.n] (default NVIDIA)")
    parser.add_argument(
        "--cache_dir",
        default="",
        metavar="FOLDER",
        help="the CACHE_DIR of the programs that run the model; without it, their default",
    )
    parser.add_argument(
        "--precision", default="", metavar="TYPE", help="f32, tf32, f16 or bf16, as the programs set it"
    )
    parser.add_argument(
        "--prompt", type=int, default=0, metavar="N", help="give a language model with state a prompt of N tokens first"
    )
    add_options(parser)
    parser.set_defaults(run=run)


class TuningCore(Core):
    """Core whose compiled models measure choices when they run; ``tuner`` is the last model's backend."""

    tuner: Tuner

    def _open_backend(self, settings: Settings) -> Backend:
        backend = super()._open_backend(settings)
        if not isinstance(backend, CudaBackend):
            raise DeviceError(f"kernels are chosen on NVIDIA cards, not on {settings.device}")
        self.tuner = Tuner(backend)
        return self.tuner


def run(args: argparse.Namespace) -> None:
    """Measure the choices of the inferences that the command line requests; print them, and write the file."""
    core, out = TuningCore(), console()
    model = core.read_model(args.model)
    precision = {"INFERENCE_PRECISION_HINT": args.precision} if args.precision else {}
    request = core.compile_model(model, args.device, {"CACHE_DIR": args.cache_dir, **precision}).create_infer_request()
    feed = build_feed(args, model, bool(request.query_state()))
    if args.prompt:
        feed = Feed(model.inputs, feed.arrays, True, args.prompt)
    for _ in range(args.steps + bool(args.prompt)):
        request.infer(feed.next())
    tuner, measured = core.tuner, core.tuner.found
    seconds = {question: times for question, times in measured.seconds.items() if len(times) > 1}
    rows = [(question, *_row(times, measured.choices.known[question])) for question, times in seconds.items()]
    out.print(table("Choices", ("step", "usual", "us", "fastest", "us", "gain"), rows, right=(2, 4, 5)))
    file = choices.path(tuner.kernels, tuner.number)
    others = sum(next(iter(times)) != measured.choices.known[question] for question, times in seconds.items())
    out.print(f"{counted(len(rows), 'choice')}, of which {others} differ from the usual ones")
    if file is not None:
        choices.write(file, measured.choices)
        out.print(f"written to {file}", markup=False, soft_wrap=True)


def _row(times: dict[str, float], chosen: str) -> tuple[str, ...]:
    usual = next(iter(times))
    gain = "" if chosen == usual else f"{times[usual] / times[chosen]:.2f}"
    return usual, f"{1e6 * times[usual]:.1f}", chosen, f"{1e6 * times[chosen]:.1f}", gain
