"""The two commands for a card that is there for fifteen minutes: what is worth most comes first.

    python -m bench.gpu correctness --out FOLDER [--budget 480] [--prepared FOLDER]
    python -m bench.gpu table --out FOLDER [--budget 225] [--prepared FOLDER]
    python -m bench.gpu --emulated --tiny --out FOLDER      a rehearsal of both without a GPU

Each item is a separate process with a limit of its own, so one that fails, dies or hangs does not end the others. An
item starts if there is time for a tenth of its limit. After each, its results are in FOLDER: archives of at most 15 MiB
(at most eight files in all, as many as come back from a card) and summary.txt, which is also printed in the end:
failed items first, then the beginning and the end of what each item printed.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {"correctness": 480, "table": 225}  # seconds
SUMMARY = 10_000  # characters
SLOWER = 4  # limits of items in a rehearsal: the emulator shares its processors with other programs
GRACE_SECONDS = 5  # between the end of an item's own budget and its stop
RESERVE_SECONDS = 5  # for the archives and the summary
ARCHIVE_BYTES = 15 << 20
MAX_ARCHIVES = 6
TEXT = (
    *(
        f"llama {variant} {part}"
        for variant in ("f16", "int4")
        for part in ("128", "8192", "prefill 512", "prefill 2048", "sequences 8", "sequences 64")
    ),
    "llama int8 128",
    "llama int8 8192",
)
NETWORKS = (
    "resnet50_f16",
    "resnet50_b64_f16",
    "bert_f16",
    "bert_b64_f16",
    "resnet50_int8",
    "resnet50_b64_int8",
    "bert_int8",
    "bert_b64_int8",
    "vit_f16",
    "unet_f16",
    "yolo_f16",
    "yolo_int8",
    "yolo_b64_f16",
    "yolo_b64_int8",
    "mobilenet_v2_f16",
    "whisper_tiny_f16",
)
ATTENTION = ("decode", "4 queries", "16 queries", "64 queries", "prefill", "bert", "vit", "whisper")
PROFILED = ("llama f16 128", "llama int4 128", "resnet50_b64_f16")


@dataclass
class Item:
    """A module of `bench` with its arguments, and its limit in seconds. ``{budget}`` in arguments stands for the
    seconds that it has, ``{work}`` for the folder of its results."""

    module: str
    seconds: float
    arguments: list[str]
    output: str = ""
    status: int | str = "not begun"

    @property
    def failed(self) -> bool:
        return self.status != 0


def items(command: str, options: argparse.Namespace) -> list[Item]:
    """Return the items of a command in the order of their worth."""
    trial = ["--emulated", "--tiny"] if options.emulated else []
    suite = ["--seconds", "{budget}", *(["--device", "emulator"] if options.emulated else [])]
    prepared: Path | None = options.prepared
    if prepared is not None and (prepared / "expectations.xz").exists():
        suite += ["--expectations", str(prepared / "expectations.xz")]
    changed = ["--files", str(prepared / "changed.txt")] if prepared and (prepared / "changed.txt").exists() else []
    clusters = ["--clusters", str(prepared / "clusters.jsonl")] if prepared else []
    some = ["tests/kernels/test_range.py"] if options.emulated else []
    alone = ["--torch", "none"] if options.emulated else []
    if command == "correctness":
        text = (
            ["--only", "llama int4 128", "llama int4 sequences 8"]
            if options.emulated
            else ["--modes", "graph", "--only", *TEXT]
        )
        return [
            Item("gpu_card", 20, ["--out", "{work}", *trial, *clusters]),
            *(
                [Item("gpu_suite", 60, ["--out", "{work}/changed", "--part-seconds", "40", *changed, *suite, *some])]
                if changed or options.emulated
                else []
            ),
            Item("gpu_suite", 75, ["--out", "{work}/models", "--part-tests", "1", *suite, "tests/models/test_card.py"]),
            Item(
                "gpu_suite",
                130,
                [
                    "--out",
                    "{work}/rest",
                    "--part-seconds",
                    "60",
                    *suite,
                    *some,
                    "--skip",
                    "{work}/changed/suite.json",
                    "{work}/models/suite.json",
                ],
            ),
            Item("gpu_sanitize", 80, ["--out", "{work}", "--budget", "{budget}", *trial]),
            Item("gpu_peers", 125, ["--out", "{work}/text.json", "--budget", "{budget}", *trial, *alone, *text]),
        ]
    again = options.again or Path("{work}/../correctness")
    networks = (
        ["--only", "lstm_state"]
        if options.emulated
        else ["--modes", "graph", "compile+graph", "--ahead", "6", "--only", *NETWORKS]
    )
    return [
        Item(
            "gpu_suite",
            15,
            [
                "--out",
                "{work}/again",
                *suite,
                "--failed",
                *(f"{again}/{part}/suite.json" for part in ("models", "rest", "changed")),
            ],
        ),
        Item("gpu_peers", 115, ["--out", "{work}/networks.json", "--budget", "{budget}", *trial, *alone, *networks]),
        Item(
            "gpu_layers",
            25,
            [
                "--out",
                "{work}/layers.json",
                "--budget",
                "{budget}",
                *trial,
                *([] if options.emulated else ["--cases", *ATTENTION]),
            ],
        ),
        Item(
            "gpu_profile",
            25,
            [
                "--out",
                "{work}",
                "--budget",
                "{budget}",
                *trial,
                "--only",
                *(["lstm_state"] if options.emulated else PROFILED),
            ],
        ),
        Item(
            "gpu_serving",
            35,
            [
                "--out",
                "{work}/serving.json",
                "--budget",
                "{budget}",
                *trial,
                *(["--only", "lstm_b1"] if options.emulated else ["--only", "resnet50_f16", "bert_f16"]),
            ],
        ),
    ]


def run(item: Item, seconds: float, work: Path) -> None:
    """Run an item for at most so many seconds; append its output to a file, and set it in the item."""
    values = {"{budget}": f"{max(seconds - GRACE_SECONDS, 1):.0f}", "{work}": str(work)}
    arguments = item.arguments
    for name, value in values.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    with (work / "output.log").open("a") as file:
        file.write(f"== {item.module} {' '.join(arguments)}\n")
        file.flush()
        began = file.tell()
        command = [sys.executable, "-u", "-m", f"bench.{item.module}", *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "160"},
        )
        try:
            item.status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            item.status = "stopped: out of time"
            os.killpg(process.pid, signal.SIGKILL)  # and all processes that it has started
            process.wait()
    with (work / "output.log").open(errors="replace") as file:
        file.seek(began)
        item.output = file.read()


def archive(work: Path, out: Path) -> list[str]:
    """Write the files of a folder to archives in ``out``. Return the names of files that they have no room for, or only
    the beginning of."""
    parts: list[list[tuple[str, bytes]]] = [[]]
    left, cut = ARCHIVE_BYTES, list[str]()
    for path in sorted((p for p in work.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size):
        name, data = str(path.relative_to(work)), path.read_bytes()
        packed = len(zlib.compress(data, 6)) + 2048  # with the header of tar
        if packed > ARCHIVE_BYTES:
            data, packed = data[: ARCHIVE_BYTES - 4096], ARCHIVE_BYTES - 1024
            cut.append(name)
        if packed > left:
            if len(parts) == MAX_ARCHIVES:
                cut.append(name)
                continue
            parts.append([])
            left = ARCHIVE_BYTES
        left -= packed
        parts[-1].append((name, data))
    for number, files in enumerate(parts):
        with tarfile.open(out / f"results-{number + 1}.tar.gz", "w:gz", compresslevel=6) as tar:
            for name, data in files:
                header = tarfile.TarInfo(name)
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    return cut


def summary(done: Iterable[Item], cut: Sequence[str] = ()) -> str:
    """Return the summary: failed items first."""
    found = sorted(done, key=lambda item: not item.failed)
    lines = [f"{item.module}: {'done' if not item.failed else f'FAILED ({item.status})'}" for item in found]
    lines += [f"not in the archives, or cut short: {', '.join(cut)}"] if cut else []
    shown = [item for item in found if item.output]
    weights = [3 if item.failed else 1 for item in shown]
    room = SUMMARY - sum(len(line) + 1 for line in lines) - 40 * len(shown)
    for item, weight in zip(shown, weights):
        share = max(room * weight // sum(weights), 0)
        text = item.output.strip()
        if len(text) > share:
            text = f"{text[: share * 2 // 3 - 5]}\n...\n{text[len(text) - share // 3 :]}"
        lines.append(f"==== {item.module}\n{text}")
    return "\n".join(lines)[:SUMMARY]


def run_command(command: str, options: argparse.Namespace, budget: float) -> list[Item]:
    """Run the items of a command within the budget; after each, its results are in the folder."""
    start = time.perf_counter()
    out: Path = options.out if options.command else options.out / command
    work: Path = options.work / command
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    found = items(command, options)
    for item in found:
        left = budget - (time.perf_counter() - start) - RESERVE_SECONDS
        if left > max(item.seconds / 10, 2):
            limit = SLOWER * item.seconds if options.emulated else item.seconds
            run(item, min(limit, left), work)
            text = summary(found, archive(work, out))
            (out / "summary.txt").write_text(text + "\n")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if an item failed or did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=BUDGETS, help="default: both")
    parser.add_argument("--budget", type=float, help="seconds of a command")
    parser.add_argument("--out", type=Path, required=True, help="folder for archives and the summary")
    parser.add_argument("--work", type=Path, help="folder for the results as they are; default: a temporary one")
    parser.add_argument("--prepared", type=Path, help="folder that bench.gpu_prepare made")
    parser.add_argument("--again", type=Path, help="results of the first command, whose failed tests run again")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; only with --emulated")
    options = parser.parse_args(arguments)
    if options.emulated != options.tiny:
        parser.error("--emulated and --tiny go together")
    options.out = options.out.resolve()
    options.work = (options.work or Path(tempfile.mkdtemp(prefix="ovgpu-card-"))).resolve()
    done: list[Item] = []
    for command in [options.command] if options.command else BUDGETS:
        done += run_command(command, options, options.budget or BUDGETS[command])
    print(summary(done))
    return int(any(item.failed for item in done))


if __name__ == "__main__":
    sys.exit(main())
