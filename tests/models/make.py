"""Makes the models of `data/` with their expected outputs, and the larger ones that the benchmarks time.

    python -m tests.models.make                          every small model, into tests/models/data
    python -m tests.models.make gpt2 llama --out DIR     some of them, elsewhere
    python -m tests.models.make --large --out DIR        the larger ones (IR only, about 600 MB)

It needs the extra `models` (torch, transformers, optimum-intel, openvino); seeds are fixed, so with the same
versions the models come out the same. A small model is `<name>/model.xml`, `model.bin` and `expected.npz`
(see `drive.Expected`). Decoders and models built as IR expect OpenVINO's CPU results in f32, and torch
agrees on the decoders' tokens; the others expect torch's results, and OpenVINO agrees with static shapes
(while shapes are dynamic its CPU plugin ignores the lengths of an LSTMSequence).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from lxml import etree

from . import build
from .drive import OPENVINO_F32, Array, Call, Decoder, Expected, Greedy, decoder_inputs, replay
from .recurrent import lstm_sequence, lstm_state
from .spec import spec_tensor_iterator

DATA = Path(__file__).parent / "data"
SPEC_SEED = 11
GREEDY_STEPS = 32

_tiny_gpt2 = dict(vocab_size=211, n_positions=96, n_embd=48, n_layer=2, n_head=4, initializer_range=0.25)
_tiny_llama = dict(
    vocab_size=211, hidden_size=48, intermediate_size=112, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=96, initializer_range=0.15,
)  # fmt: skip
_tiny_bert = dict(
    vocab_size=211, hidden_size=60, num_hidden_layers=2, num_attention_heads=5, intermediate_size=112,
    max_position_embeddings=40,
)  # fmt: skip

SMALL: dict[str, Callable[[], build.Built]] = {
    "bert": lambda: build.bert(**_tiny_bert),
    "bilstm": lambda: build.bilstm(),
    "gpt2": lambda: build.gpt2(**_tiny_gpt2),
    "gru": lambda: build.gru(),
    "llama": lambda: build.llama(**_tiny_llama),
    "lstm_state": lambda: build.from_ir(lstm_state(8)),
    "spec_tensor_iterator": lambda: build.from_ir(spec_tensor_iterator(SPEC_SEED)),
}
LARGE: dict[str, Callable[[], build.Built]] = {
    "bert_base_128": lambda: build.bert(shape=(1, 128)),
    "gpt2_12x256": lambda: build.gpt2(n_embd=256, n_layer=12, n_head=8),
    "tensor_iterator_lstm": lambda: build.from_ir(spec_tensor_iterator(SPEC_SEED)),
    "lstm_sequence_100x512": lambda: build.from_ir(lstm_sequence(12)),
    "bilstm_100x256": lambda: build.bilstm(1000, 256, 256, 2, shape=(4, 100)),
    "gru_100x512": lambda: build.gru(512, 512, 2, shape=(1, 100)),
}


def save(model: ov.Model, folder: Path) -> None:
    """Writes model.xml and model.bin in f32, without what the model tells of the machine that made it."""
    folder.mkdir(parents=True, exist_ok=True)
    xml = folder / "model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    tree = etree.parse(xml)
    net = tree.getroot()
    net.set("name", folder.name)
    for info in net.findall("rt_info"):
        net.remove(info)
    tree.write(xml, xml_declaration=True, encoding="utf-8")


def calls(name: str, random: np.random.RandomState) -> list[Call]:
    """The inferences recorded for one model, in order; outputs are still to be filled in."""
    if name == "bert":
        return [Call(_bert_inputs(random, *shape)) for shape in ((2, 7), (1, 16), (3, 11))]
    if name == "bilstm":
        return [_tagger_call(random, lengths) for lengths in ([5, 9, 2], [13, 1], [4])]
    if name == "gru":
        sizes = (3, 9), (1, 14), (2, 1)
        return [Call({"x": _normal(random, b, t, 20), "h": _normal(random, 2, b, 24)}) for b, t in sizes]
    if name == "lstm_state":
        return [Call({"frame": _normal(random, 1, 40)}, reset=k == 5) for k in range(10)]
    if name == "spec_tensor_iterator":
        states = (("h", (1, 256)), ("c", (1, 256)))
        return [
            Call({"x": _normal(random, 1, 25, 512)} | {key: _normal(random, *shape) for key, shape in states})
            for _ in range(3)
        ]
    return _decoder_calls(random)


def _normal(random: np.random.RandomState, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _bert_inputs(random: np.random.RandomState, batch: int, time: int) -> dict[str, Array]:
    mask = np.ones((batch, time), np.int64)
    mask[-1, time - 3 :] = 0
    types = np.arange(time) > time // 2
    return {
        "input_ids": random.randint(0, 211, (batch, time)).astype(np.int64),
        "attention_mask": mask,
        "token_type_ids": np.broadcast_to(types, (batch, time)).astype(np.int64),
    }


def _tagger_call(random: np.random.RandomState, lengths: list[int]) -> Call:
    tokens = random.randint(0, 61, (len(lengths), max(lengths))).astype(np.int64)
    return Call({"tokens": tokens, "lengths": np.array(lengths, np.int64)})


def _decoder_calls(random: np.random.RandomState) -> list[Call]:
    """One sequence; after a reset three, padded on the left, beams reordered, then several tokens at once."""
    steps = [
        (1, 6, None),
        (1, 1, None),
        (1, 1, None),
        (3, 7, None),
        (3, 1, None),
        (3, 1, [2, 0, 0]),
        (3, 4, [1, 1, 2]),
    ]
    recorded, mask = [], np.ones((1, 0), np.int64)
    for batch, length, beam in steps:
        new, reset = np.ones((batch, length), np.int64), batch != len(mask)
        if reset:
            mask = np.ones((batch, 0), np.int64)
            new[1, :2] = new[2, :4] = 0
        mask = np.concatenate([mask if beam is None else mask[beam], new], axis=1)
        tokens = random.randint(0, 211, (batch, length))
        recorded.append(Call(decoder_inputs(tokens, mask, beam and np.array(beam)), reset=reset))
    return recorded


def expect(name: str, built: build.Built, folder: Path) -> Expected:
    """Runs the recorded calls on the saved model; raises where OpenVINO and torch disagree."""
    core = ov.Core()
    random = np.random.RandomState(21)
    recorded = calls(name, random)
    compiled = core.compile_model(folder / "model.xml", "CPU", OPENVINO_F32)
    decoder = "beam_idx" in recorded[0].inputs
    if decoder or built.torch is None:
        outputs = list(replay(compiled, recorded))
    else:
        outputs = [tuple(built.torch(*call.inputs.values())) for call in recorded]
        for call, expected in zip(recorded, outputs):
            model = core.read_model(folder / "model.xml")
            model.reshape({key: ov.PartialShape([*a.shape]) for key, a in call.inputs.items()})
            static = core.compile_model(model, "CPU", OPENVINO_F32)
            _agree(name, next(replay(static, [call])), expected)
    if decoder:
        outputs = [(_defined(call, *logits),) for call, logits in zip(recorded, outputs)]
    filled = [Call(call.inputs, tuple(out), call.reset) for call, out in zip(recorded, outputs)]
    return Expected(filled, _greedy(name, built, compiled, random) if decoder else [])


def _defined(call: Call, logits: Array) -> Array:
    """Logits with NaN at padded positions: these attend to nothing, so that their values mean nothing."""
    padded = call.inputs["attention_mask"][:, -logits.shape[1] :] == 0
    return np.where(padded[:, :, None], np.float32(np.nan), logits)


def _agree(name: str, actual: tuple[Array, ...], expected: tuple[Array, ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        if a.shape != e.shape or np.abs(a - e).max() > 1e-5 * max(1, np.abs(e).max()):
            raise RuntimeError(
                f"[{name}] OpenVINO and torch disagree: {a.shape}, {e.shape}, {np.abs(a - e).max()}"
            )


def _greedy(
    name: str, built: build.Built, compiled: ov.CompiledModel, random: np.random.RandomState
) -> list[Greedy]:
    runs = []
    for shape in ((1, 5), (2, 9)):
        prompt = random.randint(3, 211, shape).astype(np.int64)
        decoder = Decoder(compiled)
        tokens, margin = [decoder.start(prompt)], np.inf
        while len(tokens) < GREEDY_STEPS:
            tokens.append(decoder.step(tokens[-1]))
            best = np.sort(decoder.logits[:, -1], axis=-1)[:, -2:]
            margin = min(margin, float((best[:, 1] - best[:, 0]).min() / np.abs(best).max()))
        found = np.concatenate(tokens, axis=1)
        assert built.torch is not None
        if not np.array_equal(found, built.torch(prompt, np.array(GREEDY_STEPS))[0]):
            raise RuntimeError(f"[{name}] OpenVINO and torch decode differently")
        print(f"  greedy {shape}: {len(np.unique(found))} different tokens, least margin {margin:.1e}")
        if margin < 2e-4:
            raise RuntimeError(f"[{name}] two tokens are too close to call: take another seed")
        runs.append(Greedy(prompt, found))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*SMALL, *LARGE]))
    parser.add_argument("--large", action="store_true", help="the larger models instead of the small ones")
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    if unknown := set(options.names) - {*SMALL, *LARGE}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for name in options.names or (LARGE if options.large else SMALL):
        folder = options.out / name
        built = (SMALL | LARGE)[name]()
        print(name)
        if name in LARGE:
            if folder.is_relative_to(DATA):
                parser.error(f"{name} is not to be checked in: give --out")
            save(built.model, folder)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        if name == "spec_tensor_iterator":  # its model is made in the test, from the same seed
            with tempfile.TemporaryDirectory() as temporary:
                save(built.model, Path(temporary))
                expect(name, built, Path(temporary)).save(folder / "expected.npz")
            continue
        save(built.model, folder)
        expect(name, built, folder).save(folder / "expected.npz")


if __name__ == "__main__":
    main()
