"""``ovgpu generate``: text by a decoder that optimum-intel exported. The text goes to stdout, all else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.api.core import CompiledModel, Core
from ovgpu.cli._ports import model_folder
from ovgpu.cli._print import console
from ovgpu.cli.generate.recorder import Recorder
from ovgpu.cli.generate.report import Report
from ovgpu.cli.generate.settings import Settings, add_options, read_settings
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine
from ovgpu.genai.files import NO_GGUF, read_json
from ovgpu.genai.generation import generate
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import sampling_of
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase
from ovgpu.genai.tokenizer import Tokenizer
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
    config = settings.config
    tokenizer = Tokenizer(folder)
    prompt = _prompt(args, tokenizer)
    limit = _limit(settings, len(prompt))
    for setting in settings.ignored:
        out.print(f"generation_config.json sets {setting}, which has no effect here", markup=False, soft_wrap=True)
    with out.status("compiling the model") as status:
        start = time.perf_counter()
        properties = {} if args.precision is None else {"INFERENCE_PRECISION_HINT": args.precision}
        decoder = Decoder(Core().read_model(args.model), args.device, properties)
        sampling = sampling_of(config)
        chooser = decoder.chooser(sampling.penalises)
        compile_seconds = time.perf_counter() - start
        status.update("reading the prompt")

        def generate_tokens(tokens: int, streamer: StreamerBase | None) -> None:
            own = config.copy()
            own.max_new_tokens = tokens
            own.min_new_tokens = min(config.min_new_tokens, tokens)
            generate(Engine(decoder), [prompt], own, Stops(own, tokenizer), streamer, RawPerfMetrics())

        if args.warm_up:
            generate_tokens(min(limit, WARM_UP_TOKENS), None)
        start = time.perf_counter()
        recorder = Recorder(tokenizer, prompt, _ends(config), status)
        try:
            generate_tokens(limit, recorder)
        except KeyboardInterrupt:
            recorder.reason = "interrupted"
        finally:
            recorder.finish()
        total_seconds = time.perf_counter() - start
    if not recorder.reason:
        recorder.reason = "length" if limit == config.max_new_tokens else "context"
    report = Report(
        recorder,
        args.model,
        _device(chooser.compiled),
        f"{sampling}, seed {config.rng_seed}" if config.do_sample else str(sampling),
        limit,
        settings.context,
        compile_seconds,
        total_seconds,
        [state.state.byte_size for state in chooser.request.query_state()],
    )
    report.print(out)
    if args.json:
        with replacing(Path(args.json)) as (file,):
            file.write(json.dumps(report.as_json(), indent=2).encode() + b"\n")
    return 130 if recorder.reason == "interrupted" else 0


def _folder(path: Path) -> Path:
    """Return the folder of a model. Raises ValueError if it does not exist, or its files are not those of a decoder."""
    if path.suffix.lower() == ".gguf":
        raise ValueError(f"{path}: {NO_GGUF}")
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


def _prompt(args: argparse.Namespace, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of the prompt. Raises ValueError if there are none."""
    if args.system is not None and not args.chat:
        raise ValueError("--system is for --chat")
    text = args.prompt
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    if args.chat:
        text = tokenizer.apply_chat_template(_messages(text, args.system), add_generation_prompt=True)
    encoded = tokenizer.encode(text, add_special_tokens=not args.chat)  # the template has special tokens
    tokens: list[int] = encoded.input_ids.data[0].tolist()
    if not tokens:
        raise ValueError("the prompt has no tokens")
    return tokens


def _messages(message: str, system: str | None) -> list[dict[str, str]]:
    """Return a chat with one message of the user."""
    messages = [{"role": "user", "content": message}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _limit(settings: Settings, prompt: int) -> int:
    """Return the largest number of new tokens. Raises ValueError if the prompt fills the context."""
    limit = settings.config.max_new_tokens
    if settings.context is None:
        return limit
    if prompt >= settings.context:
        raise ValueError(
            f"the prompt has {counted(prompt, 'token')}, and the context of the model only "
            f"{settings.context}, prompt and answer together"
        )
    return min(limit, settings.context - prompt)


def _ends(config: GenerationConfig) -> set[int]:
    """Return the tokens that end the text."""
    return set() if config.ignore_eos else config.stop_token_ids


def _device(compiled: CompiledModel) -> str:
    devices = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    return f"{devices} ({compiled.get_property('FULL_DEVICE_NAME')})"
