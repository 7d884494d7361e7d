"""``ovgpu generate``: text by a decoder that optimum-intel exported. The text goes to stdout, all else to stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.status import Status

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.api.core import CompiledModel, Core
from ovgpu.cli._ports import model_folder
from ovgpu.cli._print import console
from ovgpu.cli.generate.generator import Generator, prepare
from ovgpu.cli.generate.report import Report
from ovgpu.cli.generate.settings import Settings, add_options, read_json, read_settings
from ovgpu.cli.generate.tokenizer import TextStream, chat_prompt, load_tokenizer
from ovgpu.genai.sampling import check_seed
from ovgpu.runtime.printing import counted

WARM_UP_TOKENS = 4  # the prompt, and decode steps that are bound, captured and replayed
PARTS = ("openvino_encoder_model.xml", "openvino_language_model.xml")
"""Files of models that consist of several parts, which generate does not run."""


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser(
        "generate",
        help="generate text with a language model",
        description="Generate text with a decoder that optimum-intel exported.",
    )
    add = parser.add_argument
    add("model", metavar="DIR", help="folder with openvino_model.xml and tokenizer.json")
    add("prompt", help="the beginning of the text, which the model continues; - reads it from stdin")
    add("-d", "--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    add(
        "--precision",
        choices=("f32", "tf32", "f16", "bf16", "dynamic"),
        help="the type to compute in (default: f32 on the CPU; dynamic on a card, which keeps the model's types)",
    )
    add("--chat", action="store_true", help="the prompt is a message, to be written into the model's chat template")
    add("--system", metavar="TEXT", help="the system message of --chat")
    add(
        "--warm-up",
        action="store_true",
        help="first generate a few tokens that do not count, so that no kernels are compiled while times are measured",
    )
    add("--json", metavar="FILE", help="write the figures, the time of each token, the tokens and the text")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Generate, print the text as it comes, then the figures. Return the exit code: 130 if Ctrl-C ended the text."""
    out = console(error=True)
    if args.json:  # fail before the work, not after it
        check_writable(Path(args.json))
    folder = _folder(Path(args.model))
    settings = read_settings(folder, args)
    tokenizer = load_tokenizer(folder)
    prompt = _prompt(args, folder, tokenizer)
    limit = _limit(settings, len(prompt))
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    check_seed(seed)
    for setting in settings.ignored:
        out.print(f"generation_config.json sets {setting}, which has no effect here", markup=False, soft_wrap=True)
    with out.status("compiling the model") as status:
        start = time.perf_counter()
        compiled, output = _compile(args, settings.sampling.penalises)
        compile_seconds = time.perf_counter() - start
        generator = Generator(compiled, output)
        status.update("reading the prompt")
        if args.warm_up:
            list(generator.generate(prompt, settings.sampling, seed, min(limit, WARM_UP_TOKENS), ()))
        start = time.perf_counter()
        tokens = generator.generate(prompt, settings.sampling, seed, limit, settings.ends)
        text, record = _stream(tokens, TextStream(tokenizer, prompt), status), generator.record
        total_seconds = time.perf_counter() - start
    record.reason = record.reason or "interrupted"
    if record.reason == "length" and limit < settings.max_new_tokens:
        record.reason = "context"
    report = Report(
        record,
        text,
        args.model,
        _device(compiled),
        f"{settings.sampling}, seed {seed}" if settings.sampling.sample else str(settings.sampling),
        limit,
        settings.context,
        compile_seconds,
        total_seconds,
        [state.state.byte_size for state in generator.request.query_state()],
    )
    report.print(out)
    if args.json:
        with replacing(Path(args.json)) as (file,):
            file.write(json.dumps(report.as_json(), indent=2).encode() + b"\n")
    return 130 if record.reason == "interrupted" else 0


def _folder(path: Path) -> Path:
    """Return the folder of a model. Raises ValueError if it does not exist, or its files are not those of a decoder."""
    if not path.exists():
        raise ValueError(f"there is no folder {path}: `optimum-cli export openvino --model NAME {path}` makes one")
    folder = model_folder(str(path))
    config = read_json(folder / "config.json")
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"{folder} has an encoder and a decoder (model_type {config.get('model_type')}): "
            "generate runs decoders without an encoder"
        )
    for name in PARTS:
        if path.is_dir() and (folder / name).exists() and not (folder / "openvino_model.xml").exists():
            raise ValueError(
                f"{folder} has a model of several parts, such as {name}: generate runs decoders in one "
                "file, openvino_model.xml"
            )
    return folder


def _prompt(args: argparse.Namespace, folder: Path, tokenizer: Any) -> list[int]:
    """Return the tokens of the prompt. Raises ValueError if there are none."""
    if args.system is not None and not args.chat:
        raise ValueError("--system is for --chat")
    text = args.prompt
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    if args.chat:
        text = chat_prompt(folder, text, args.system)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=not args.chat).ids  # the template has special tokens
    if not tokens:
        raise ValueError("the prompt has no tokens")
    return tokens


def _limit(settings: Settings, prompt: int) -> int:
    """Return the largest number of new tokens. Raises ValueError if the prompt fills the context."""
    if settings.context is None:
        return settings.max_new_tokens
    if prompt >= settings.context:
        raise ValueError(
            f"the prompt has {counted(prompt, 'token')}, and the context of the model only "
            f"{settings.context}, prompt and answer together"
        )
    return min(settings.max_new_tokens, settings.context - prompt)


def _compile(args: argparse.Namespace, penalties: bool) -> tuple[CompiledModel, int]:
    """Return the compiled model, rewritten for one text, and the index of the output with its tokens."""
    core = Core()
    model = core.read_model(args.model)
    output = prepare(model, penalties)
    options = {} if args.precision is None else {"INFERENCE_PRECISION_HINT": args.precision}
    return core.compile_model(model, args.device, options), output


def _device(compiled: CompiledModel) -> str:
    devices = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    return f"{devices} ({compiled.get_property('FULL_DEVICE_NAME')})"


def _stream(tokens: Any, stream: TextStream, status: Status) -> str:
    """Write the text of tokens to stdout as they come, until they end or Ctrl-C is pressed. Return the text."""
    pieces = []

    def write(piece: str) -> None:
        if piece:
            status.stop()
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()

    try:
        for token in tokens:
            write(stream.add(token))
    except KeyboardInterrupt:
        pass
    finally:
        write(stream.finish())
        text = "".join(pieces)
        if text and not text.endswith("\n"):
            write("\n")
    return text
