"""``ovgpu generate``: tokens, sampling, text as it is streamed, chats, figures and errors."""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.api.infer_request import InferRequest
from ovgpu.cli import main
from ovgpu.cli.generate.command import _messages
from ovgpu.cli.generate.settings import add_options, read_settings
from ovgpu.cli.generate.text_stream import TextStream
from ovgpu.genai.decoder import DecoderInputs, prepare
from ovgpu.genai.generation_config import FIELDS, GenerationConfig
from ovgpu.genai.tokenizer import Tokenizer
from tests.genai.make_tokenizer import byte_tokenizer
from tests.harness import judge
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, OPENVINO_F32, Decoder

tokenizers: Any = pytest.importorskip("tokenizers")

CONTEXT = 96
PROMPT = "To be, or not"
Folder = Callable[..., Path]
Figures = Callable[..., dict[str, Any]]


def encode(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer().encode(text).ids
    return ids


def text_after(prompt: str, tokens: list[int]) -> str:
    text: str = byte_tokenizer().decode(encode(prompt) + tokens)
    return text.removeprefix(prompt)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a function that writes the folder of a model, with the contents of the configuration files."""

    def write(model: str = "llama", generation: Any = None, **config: Any) -> Path:
        path = tmp_path / model
        path.mkdir(exist_ok=True)
        for suffix in ("xml", "bin"):
            shutil.copy(DATA / model / f"model.{suffix}", path / f"openvino_model.{suffix}")
        tokenizer = tokenizers.Tokenizer.from_str(byte_tokenizer().to_str())
        tokenizer.enable_padding(length=40)  # generate turns both off
        tokenizer.enable_truncation(3)
        tokenizer.save(str(path / "tokenizer.json"))
        (path / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT} | config))
        if generation is not None:
            (path / "generation_config.json").write_text(json.dumps(generation))
        return path

    return write


@pytest.fixture
def figures(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that generates, checks the text on stdout, and returns the contents of ``--json``."""
    path = tmp_path / "figures.json"

    def run(
        capsys: pytest.CaptureFixture[str], folder: Path, *argv: str, code: int = 0, device: str = "CPU"
    ) -> dict[str, Any]:
        assert main(["generate", str(folder), *argv, "--json", str(path), "--device", device]) == code
        found: dict[str, Any] = json.loads(path.read_text())
        out, found["stderr"] = capsys.readouterr()
        assert out == found["text"] + ("" if found["text"].endswith("\n") or not found["text"] else "\n")
        return found

    return run


def error(capsys: pytest.CaptureFixture[str], *argv: Any) -> str:
    """Return the one line that a failing command prints."""
    assert main(["generate", *map(str, argv)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ovgpu: error: ") and err.count("\n") == 1
    return err.removeprefix("ovgpu: error: ").rstrip()


@cache
def expected(name: str, prompt: str, steps: int) -> list[int]:
    """Return the tokens that OpenVINO's CPU plugin generates greedily."""
    core: Any = judge.core()
    compiled = core.compile_model(core.read_model(DATA / name / "model.xml"), "CPU", OPENVINO_F32)
    found: list[int] = Decoder(compiled).greedy(np.array([encode(prompt)]), steps)[0].tolist()
    return found


# ---- tokens


@pytest.mark.drawn(2)
@pytest.mark.parametrize("model", ["gpt2", "llama", "gemma2", "qwen3", "mixtral"])
def test_greedy_tokens(model: str, folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, folder(model), PROMPT, "--max-new-tokens", "40")
    assert found["tokens"] == expected(model, PROMPT, 40)
    assert found["text"] == text_after(PROMPT, found["tokens"])
    assert found["prompt_tokens"] == len(encode(PROMPT)) and found["new_tokens"] == 40
    assert found["ended_by"] == "length" and "ended after 40 tokens (--max-new-tokens)" in found["stderr"]


@pytest.mark.parametrize("model", ["llama", "llama_int8"])
def test_on_a_device(
    model: str, folder: Folder, figures: Figures, emulated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [PROMPT, "--max-new-tokens", "8"]
    on_host = figures(capsys, folder(model), *argv)
    for precision in ([], ["--precision", "f32", "--warm-up"]):
        found = figures(capsys, folder(model), *argv, *precision, device=emulated)
        assert (found["tokens"], found["text"]) == (on_host["tokens"], on_host["text"])


def test_inputs_continue_the_text() -> None:
    net = Net()
    shapes = {
        "input_ids": ("i64", (-1, -1)),
        "attention_mask": ("i32", (-1, -1)),
        "beam_idx": ("i32", (-1,)),
        "position_ids": ("i64", (3, -1, -1)),
        "token_type_ids": ("i64", (-1, -1)),
    }
    for name, (kind, shape) in shapes.items():
        net.result(net.parameter(kind, shape, name))
    inputs = DecoderInputs(ovgpu.Core().read_model(*net.build()).inputs)
    names = list(shapes)
    first, second = (
        {names[number]: array for number, array in inputs.next([tokens]).items()} for tokens in ([7, 8, 9], [5])
    )
    assert {name: array.dtype.name for name, array in first.items()} == {
        name: {"i64": "int64", "i32": "int32"}[kind] for name, (kind, _) in shapes.items()
    }
    assert first["position_ids"].tolist() == [[[0, 1, 2]]] * 3 and second["position_ids"].tolist() == [[[3]]] * 3
    assert second["attention_mask"].tolist() == [[1] * 4] and first["token_type_ids"].tolist() == [[0] * 3]
    assert (first["input_ids"].tolist(), second["input_ids"].tolist()) == ([[7, 8, 9]], [[5]])
    assert second["beam_idx"].tolist() == [0]


# ---- the end


@pytest.mark.parametrize("form", ["number", "list", "config.json"])
def test_tokens_that_end_the_text(
    form: str, folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = expected("llama", PROMPT, 20)
    last = next(i for i in range(4, 20) if tokens[i] not in tokens[:i])
    if form == "config.json":  # as in old exports
        path = folder(eos_token_id=tokens[last])
    else:
        path = folder(
            generation={"eos_token_id": tokens[last] if form == "number" else [0, tokens[last]], "max_new_tokens": 20}
        )
    found = figures(capsys, path, PROMPT)
    assert found["tokens"] == tokens[: last + 1] and found["ended_by"] == "end"
    assert found["text"] == text_after(PROMPT, tokens[:last])
    assert figures(capsys, path, PROMPT, "--ignore-eos", "--max-new-tokens", "20")["tokens"] == tokens


def test_a_full_context_ends_the_text(folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder()
    found = figures(capsys, path, PROMPT, "--max-new-tokens", "500")
    assert found["prompt_tokens"] + found["new_tokens"] == CONTEXT and found["ended_by"] == "context"
    assert "ended because the context of 96 tokens is full" in found["stderr"]
    assert error(capsys, path, "b" * CONTEXT) == (
        "the prompt has 97 tokens, and the context of the model only 96, prompt and answer together"
    )
    path = folder(max_position_embeddings=None, text_config={"max_position_embeddings": 20})
    assert figures(capsys, path, PROMPT)["ended_by"] == "context"


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_interrupt(
    calls: int, folder: Folder, figures: Figures, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends the text; the figures are those of the tokens before it."""
    infer, count = InferRequest.infer, iter(range(1000))

    def interrupted(*args: Any, **named: Any) -> Any:
        if next(count) == calls:
            raise KeyboardInterrupt
        return infer(*args, **named)

    monkeypatch.setattr(InferRequest, "infer", interrupted)
    found = figures(capsys, folder(), PROMPT, code=130)
    assert (found["new_tokens"], found["ended_by"]) == (calls, "interrupted")
    assert found["tokens"] == expected("llama", PROMPT, 40)[:calls]
    assert re.search(rf"{calls} new tokens? in [\d.]+ s on CPU", found["stderr"])
    assert ("until the first token" in found["stderr"]) == (calls > 0)
    assert ("after the first token" in found["stderr"]) == (calls > 1)


def test_figures(folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, folder(), PROMPT, "--max-new-tokens", "9", "--warm-up")
    assert found["later_tokens"] == 8 and len(found["token_seconds"]) == 9
    assert found["prompt_tokens_per_second"] == pytest.approx(found["prompt_tokens"] / found["first_token_seconds"])
    assert found["median_token_seconds"] == pytest.approx(np.median(found["token_seconds"][1:]))
    assert found["tokens_per_second"] == pytest.approx(8 / sum(found["token_seconds"][1:]))
    assert sum(found["token_seconds"]) <= found["total_seconds"] and found["compile_seconds"] > 0
    rows = found["prompt_tokens"] + 8  # the last token was not read
    assert (found["states"], found["state_bytes"]) == (4, 4 * 2 * 8 * rows * 4)  # keys and values of two layers
    assert re.search(rf"until the first token +{found['prompt_tokens']} +[\d.]+ +[\d.]+", found["stderr"])
    assert re.search(r"after the first token +8 +[\d.]+ +[\d.]+ +[\d.]+ ms, [\d.]+ tokens/s", found["stderr"])
    assert "4 states of " in found["stderr"] and "; greedy; " in found["stderr"]


# ---- sampling


def test_seeds(folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder()

    def tokens(*argv: str) -> list[int]:
        found: list[int] = figures(capsys, path, PROMPT, "--max-new-tokens", "8", *argv)["tokens"]
        return found

    sampled = tokens("--sample", "--seed", "1")
    assert sampled == tokens("--sample", "--seed", "1") != tokens("--sample", "--seed", "2")
    greedy = tokens()
    assert greedy == tokens("--top-k", "1") == tokens("--temperature", "0") == tokens("--top-p", "1e-9")
    assert greedy != tokens("--repetition-penalty", "5")
    found = figures(capsys, path, PROMPT, "--temperature", "1.5", "--max-new-tokens", "8")
    seed = re.search(r"sampled, temperature 1.5, seed (\d+);", found["stderr"])
    assert seed is not None and tokens("--temperature", "1.5", "--seed", seed[1]) == found["tokens"]


def settings(path: Path, *argv: str) -> Any:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_settings(path, parser.parse_args(argv))


FILE = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    "generation, argv, fields",
    [
        (None, [], {"do_sample": False}),
        (None, ["--sample"], {"do_sample": True}),
        (FILE, [], FILE),
        (FILE, ["--greedy"], FILE | {"do_sample": False}),
        (FILE, ["--temperature", "0"], FILE | {"do_sample": False, "temperature": 1.0}),
        (
            FILE,
            ["--top-k", "0", "--top-p", "1", "--repetition-penalty", "1"],
            FILE | {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
        ),
        ({"do_sample": True, "top_k": None, "temperature": None}, [], {"do_sample": True}),
        ({"temperature": 0.6}, [], {"do_sample": False, "temperature": 0.6}),
        ({"temperature": 0.6}, ["--top-p", "0.5"], {"do_sample": True, "temperature": 0.6, "top_p": 0.5}),
        ({"min_p": 0.1}, ["--sample"], {"do_sample": True, "min_p": 0.1}),
        (None, ["--min-p", "0.2"], {"do_sample": True, "min_p": 0.2}),
        ({"num_beams": 4, "num_return_sequences": 2}, [], {"num_beams": 1, "num_return_sequences": 1}),
    ],
    ids=str,
)
def test_settings(generation: Any, argv: list[str], fields: dict[str, Any], folder: Folder) -> None:
    config = settings(folder(generation=generation), *argv, "--seed", "7").config
    expected = GenerationConfig(max_new_tokens=128, rng_seed=7, **fields)
    assert {name: getattr(config, name) for name in FIELDS} == {name: getattr(expected, name) for name in FIELDS}


def test_settings_without_effect(folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(generation={"num_beams": 4, "min_p": 0, "typical_p": 1.0, "max_new_tokens": 3})
    found = figures(capsys, path, PROMPT)
    assert "generation_config.json sets num_beams = 4, which has no effect here\n" in found["stderr"]
    assert "min_p" not in found["stderr"] and found["new_tokens"] == 3


# ---- text


def llama_tokenizer() -> Any:
    """Return a tokenizer like those of sentencepiece: spaces are parts of words, and other characters are bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁to", "▁be", "be", ",", "▁"]
    found = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {word: n for n, word in enumerate(dict.fromkeys(words))}, [], byte_fallback=True, unk_token="<unk>"
        )
    )
    kinds = tokenizers.decoders
    found.decoder = kinds.Sequence(
        [kinds.Replace("▁", " "), kinds.ByteFallback(), kinds.Fuse(), kinds.Strip(" ", 1, 0)]
    )
    found.add_special_tokens(["<s>", "</s>"])
    return found


def pieces(tokenizer: Any, prompt: list[int], tokens: Sequence[int]) -> list[str]:
    stream = TextStream(tokenizer, prompt)
    return [*map(stream.add, tokens), stream.finish()]


def test_text_keeps_spaces_and_waits_for_characters() -> None:
    tokenizer = llama_tokenizer()
    to, be, more, comma = (tokenizer.token_to_id(word) for word in ("▁to", "▁be", "be", ","))
    euro, smile = ([3 + byte for byte in text.encode()] for text in ("€", "😀"))
    assert pieces(tokenizer, [1, to], [be, more, comma, 2, to]) == [" be", "be", ",", "", " to", ""]
    assert pieces(tokenizer, [1], [to, be]) == ["to", " be", ""]
    assert pieces(tokenizer, [1, to, *smile], [*euro, *smile, be]) == ["", "", "€", "", "", "", "😀", " be", ""]
    assert pieces(tokenizer, [1, to], euro[:2]) == ["", "", "��"]
    assert pieces(tokenizer, [1, to], [*euro[:2], be]) == ["", "", "�� be", ""]


def test_text_of_bytes() -> None:
    text = " aé€😀 naïve, \n…"
    tokens = encode(text)[1:]
    found = pieces(byte_tokenizer(), encode("To"), tokens)
    assert "".join(found) == text and "�" not in "".join(found)
    assert [piece for piece in found if piece] == list(text)


@pytest.mark.parametrize("seed", range(20))
def test_text_of_random_tokens(seed: int) -> None:
    """The pieces make the text that the tokens have together, also where bytes are no characters.

    Tokens of bytes, as sentencepiece has them, make characters here: the text of a faulty one would depend on later
    ones.
    """
    random = np.random.default_rng(seed)
    pool = [[n] for n in range(259) if n < 3 + 128] + [[3 + byte for byte in text.encode()] for text in "é€😀" * 20]
    pool += [[n] for n in range(259, llama_tokenizer().get_vocab_size())] * 10
    drawn = [token for n in random.integers(0, len(pool), 200) for token in pool[n]]
    for tokenizer, tokens in (byte_tokenizer(), random.integers(0, 211, 200).tolist()), (llama_tokenizer(), drawn):
        for prompt in [1], [1, *tokens, 40]:
            start = tokenizer.decode(prompt)
            assert start + "".join(pieces(tokenizer, prompt, tokens)) == tokenizer.decode(prompt + tokens)


def test_stdin(
    folder: Folder, figures: Figures, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    found = figures(capsys, folder(), "-", "--max-new-tokens", "5")
    assert found["tokens"] == expected("llama", PROMPT, 40)[:5]


def test_text_comes_while_it_is_generated(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is written and flushed before the next token is computed."""
    log: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            log.append(text)
            return len(text)

        def flush(self) -> None:
            log.append("flush")

    infer = InferRequest.infer
    monkeypatch.setattr(InferRequest, "infer", lambda *args, **named: (log.append("infer"), infer(*args, **named))[1])
    monkeypatch.setattr(sys, "stdout", Stream())
    assert main(["generate", str(folder()), PROMPT, "--max-new-tokens", "30", "--device", "CPU"]) == 0
    written = [i for i, entry in enumerate(log) if entry not in ("infer", "flush")]
    assert len(written) > 5 and all(log[i + 1] == "flush" for i in written)
    assert log.index("infer", written[0]) < written[-1]


# ---- chats

TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ raise_exception('No tools') }}{% endif %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content }}{% endgeneration %}{% continue %}
    {%- endif %}
{{ bos_token }}[{{ message.role }}]{{ message.content | trim }}{{ eos_token }}
{%- endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
CHAT = "<s>[user]Hi</s>[assistant]"


def chat_prompt(folder: Path, message: str, system: str | None = None) -> str:
    return Tokenizer(folder).apply_chat_template(_messages(message, system), add_generation_prompt=True)


@pytest.mark.parametrize("form", ["text", "list", "file"])
def test_chat(form: str, folder: Folder, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder()
    template: Any = (
        TEMPLATE if form == "text" else [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<s>",
                "eos_token": {"content": "</s>"},
                "chat_template": "no" if form == "file" else template,
            }
        )
    )
    if form == "file":
        (path / "chat_template.jinja").write_text(TEMPLATE)
    assert chat_prompt(path, " Hi ") == CHAT
    assert chat_prompt(path, "Hi", "Sei kühn") == "<s>[system]Sei kühn</s>" + CHAT
    found = figures(capsys, path, "Hi", "--chat", "--max-new-tokens", "6")
    ids = byte_tokenizer().encode(CHAT, add_special_tokens=False).ids
    assert found["prompt_tokens"] == len(ids) and ids.count(1) == 1
    assert found["text"] == byte_tokenizer().decode(ids + found["tokens"])[len(byte_tokenizer().decode(ids)) :]


def test_functions_of_templates(folder: Folder) -> None:
    path = folder()
    template = path / "chat_template.jinja"
    template.write_text("{{ messages | tojson }} {{ strftime_now('%Y') }} {{ tools is none }} {{ mask_token }}")
    assert re.fullmatch(r'\[{"role": "user", "content": "ä<"}\] \d{4} True ', chat_prompt(path, "ä<"))
    for text, problem in (
        ("{{ raise_exception('System role not supported') }}", "fails: System role not supported"),
        ("{{ messages[0].__class__.__mro__ }}", "fails: access to attribute '__class__'"),
        ("{% if %}", "fails: "),
        ("{{ messages.append(1) }}", "fails: "),
    ):
        template.write_text(text)
        with pytest.raises(ovgpu.Error, match=f"the chat template {re.escape(problem)}"):
            chat_prompt(path, "Hi")


# ---- errors


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--chat"], "there is no chat template, neither in openvino_tokenizer.xml nor in chat_template.jinja"),
        (["--system", "Be brief"], "--system is for --chat"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1, not 0"),
        (["--temperature", "-1"], "temperature must be greater than 0, not -1"),
        (["--top-k", "-2"], "top_k must be an integer from 0 to 18446744073709551615, not -2"),
        (["--top-p", "1.5"], "top_p must be greater than 0 and at most 1, not 1.5"),
        (["--seed", str(2**64)], f"seed must be an integer from 0 to {2**64 - 1}, not {2**64}"),
        (["--repetition-penalty", "0"], "repetition_penalty must be greater than 0, not 0"),
        (["--greedy", "--top-k", "3"], "--greedy takes the most likely token: leave out --top-k"),
        (["--device", "TPU"], 'Device with "TPU" name is not registered'),
    ],
)
def test_errors(argv: list[str], message: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error(capsys, folder(), PROMPT, *argv)


def test_errors_of_folders(folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no folder Qwen/Qwen3-0.6B: `optimum-cli export" in error(capsys, "Qwen/Qwen3-0.6B", PROMPT)
    assert "qwen3.gguf: GGUF is not read: export the model" in error(capsys, "qwen3.gguf", PROMPT)
    assert "has no tokenizer, neither tokenizer.json nor openvino_tokenizer.xml" in error(capsys, tmp_path, PROMPT)
    path = folder(is_encoder_decoder=True, model_type="t5")
    assert "has an encoder and a decoder (model_type t5)" in error(capsys, path, PROMPT)
    path = folder(generation=[])
    assert error(capsys, path, PROMPT).endswith("generation_config.json has no JSON object")
    path = folder("gpt2")
    (path / "openvino_model.xml").rename(path / "openvino_language_model.xml")
    assert "has a model of several parts, such as openvino_language_model.xml" in error(capsys, path, PROMPT)
    (path / "config.json").write_text("{")
    assert "config.json cannot be read as JSON: " in error(capsys, path, PROMPT)
    (path / "config.json").unlink()
    (path / "openvino_language_model.xml").rename(path / "openvino_model.xml")
    (path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read: " in error(capsys, path, PROMPT)
    (path / "tokenizer.json").unlink()
    assert f"AutoTokenizer.from_pretrained(NAME).save_pretrained('{path}')" in error(capsys, path, PROMPT)


def test_errors_of_models(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the model has the input encoder_hidden_states: generate knows input_ids, attention_mask" in error(
        capsys, folder("whisper_decoder"), PROMPT
    )
    assert "the model has no state, so that it cannot remember the text: export it with `optimum-cli" in error(
        capsys, folder("bert"), PROMPT
    )


@pytest.mark.parametrize(
    "inputs, outputs, message",
    [
        (["input_ids", "past_key_values.0.key"], ["logits"], "the model has no state"),
        (["tokens", "input_ids"], ["logits"], "the model has the input tokens"),
        (["attention_mask"], ["logits"], "the model has no input input_ids"),
        (["input_ids"], ["a", "b"], "the model has no output logits, only a, b"),
        (["input_ids"], ["logits"], "output 'logits' has the shape [?,1]: logits have [batch, length, vocabulary]"),
    ],
)
def test_models_of_other_forms(inputs: list[str], outputs: list[str], message: str) -> None:
    net = Net()
    ports = [net.parameter("f32", (-1, 1), name) for name in inputs]
    past = net.read_value("s", "f32", (-1, 1), ports[0])
    net.assign("s", past)
    for name in outputs:
        net.result(net.layer("Add", "opset1", [past, ports[-1]], names=[name]))
    with pytest.raises(ovgpu.Error, match=re.escape(message)):
        prepare(ovgpu.Core().read_model(*net.build()), penalties=False)


@pytest.mark.parametrize("module, argv", [("tokenizers", []), ("jinja2.sandbox", ["--chat"])])
def test_missing_packages(
    module: str, argv: list[str], folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder()
    (path / "chat_template.jinja").write_text(TEMPLATE)
    monkeypatch.setitem(sys.modules, module, None)
    assert f'the package {module.partition(".")[0]}: pip install ".[genai]"' in error(capsys, path, PROMPT, *argv)


def test_the_command_line_loads_neither() -> None:
    code = "import sys, ovgpu.cli.generate; print({'tokenizers', 'jinja2'} & sys.modules.keys() or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
