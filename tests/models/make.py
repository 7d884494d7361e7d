"""Script that makes the models of the catalogue: small ones with expected outputs, larger ones for benchmarks.

    python -m tests.models.make                          the small models that are checked in, into tests/models/data
    python -m tests.models.make gpt2 llama --out DIR     some of them, elsewhere
    python -m tests.models.make --all --out DIR          every small model
    python -m tests.models.make --large --out DIR        the larger ones (without expected outputs; about 2 GB)

It needs the extra `models` (torch, transformers, optimum-intel, nncf, openvino); seeds are fixed, so with the same
versions the models come out the same. gemma2 takes transformers 5.0.0. A model is `<name>/model.xml`, `model.bin` and
`expected.npz` (see `drive.Expected`). OpenVINO's CPU plugin in f32 is the reference; torch must agree on the tokens
of decoders, and on the outputs of other models that have a torch module. For the latter torch's outputs are stored,
as OpenVINO agrees with static shapes only: with dynamic ones it ignores the lengths of an LSTMSequence.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
from lxml import etree

from tests.harness.models.build._convert import Built, function
from tests.harness.models.build.decoders import continuation
from tests.harness.models.catalogue import LARGE, SMALL, STORED
from tests.harness.models.drive import (
    DATA,
    GREEDY_STEPS,
    OPENVINO_F32,
    TOLERANCE,
    Array,
    Call,
    Decoder,
    Expected,
    Greedy,
    defined,
    relative_error,
    replay,
)

PERTURBATION = 1e-6
LEAST_MARGIN = 2e-4


def save(model: ov.Model, folder: Path) -> None:
    """Write model.xml and model.bin in f32, without information about the machine that made them."""
    folder.mkdir(parents=True, exist_ok=True)
    xml = folder / "model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    tree = etree.parse(xml)
    net = tree.getroot()
    net.set("name", folder.name)
    for info in net.findall("rt_info"):
        net.remove(info)
    tree.write(xml, xml_declaration=True, encoding="utf-8")


def expect(name: str, built: Built, folder: Path) -> Expected:
    """Run the recorded calls on the saved model. Raises RuntimeError where OpenVINO and torch disagree."""
    core = ov.Core()
    random = np.random.RandomState(21)
    recorded = built.calls(random)
    compiled = core.compile_model(folder / "model.xml", "CPU", OPENVINO_F32)
    decoder = "beam_idx" in recorded[0].inputs
    if decoder or built.module is None:
        outputs = list(replay(compiled, recorded))
    else:
        eager = function(built.module)
        outputs = [tuple(eager(*call.inputs.values())) for call in recorded]
        for call, expected in zip(recorded, outputs):
            model = core.read_model(folder / "model.xml")
            model.reshape({key: ov.PartialShape([*a.shape]) for key, a in call.inputs.items()})
            static = core.compile_model(model, "CPU", OPENVINO_F32)
            _agree(name, next(replay(static, [call])), expected)
    tolerance = TOLERANCE
    if any(layer.get_type_name() == "FakeQuantize" for layer in built.model.get_ops()):
        tolerance = max(tolerance, _sensitivity(compiled, recorded, outputs))
        print(f"  tolerance {tolerance:.1e}")
    filled = [Call(call.inputs, defined(call, out), call.reset) for call, out in zip(recorded, outputs)]
    return Expected(filled, _greedy(name, built, compiled, random), tolerance)


def _sensitivity(compiled: ov.CompiledModel, calls: list[Call], outputs: list[tuple[Array, ...]]) -> float:
    """Measure how far outputs move if inputs do by 1e-6, as quantization turns rounding errors into whole levels."""
    random, worst = np.random.RandomState(22), 0.0
    for _ in range(8):
        moved = [Call({name: _moved(random, a) for name, a in call.inputs.items()}, reset=call.reset) for call in calls]
        pairs = zip(replay(compiled, moved), outputs)
        worst = max(worst, *(relative_error(a, e) for found, expected in pairs for a, e in zip(found, expected)))
    return 2 * worst


def _moved(random: np.random.RandomState, x: Array) -> Array:
    if x.dtype.kind != "f":
        return x
    return (x * (1 + PERTURBATION * random.uniform(-1, 1, x.shape))).astype(x.dtype)


def _agree(name: str, actual: tuple[Array, ...], expected: tuple[Array, ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        if a.shape != e.shape or np.abs(a - e).max() > 1e-5 * max(1, np.abs(e).max()):
            raise RuntimeError(f"[{name}] OpenVINO and torch disagree: {a.shape}, {e.shape}, {np.abs(a - e).max()}")


def _greedy(name: str, built: Built, compiled: ov.CompiledModel, random: np.random.RandomState) -> list[Greedy]:
    """Decode prompts greedily; prompts are drawn again if the two best tokens are too close at any step."""
    while True:
        runs, margins = [], []
        for prompt, context in built.prompts(random):
            decoder = Decoder(compiled, context)
            tokens = [decoder.start(prompt)]
            while len(tokens) < GREEDY_STEPS:
                tokens.append(decoder.step(tokens[-1]))
                best = np.sort(decoder.logits[:, -1], axis=-1)[:, -2:]
                margins.append(float((best[:, 1] - best[:, 0]).min() / np.abs(best).max()))
            runs.append(Greedy(prompt, np.concatenate(tokens, axis=1), context))
        if min(margins, default=np.inf) > LEAST_MARGIN:
            break
    for run in runs:
        print(f"  greedy {run.prompt.shape}: {len(np.unique(run.tokens))} different tokens")
        torch_agrees = built.module is None or np.array_equal(
            run.tokens, continuation(built.module, run.prompt, run.context)
        )
        if not torch_agrees:
            raise RuntimeError(f"[{name}] OpenVINO and torch decode differently")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*SMALL, *LARGE]))
    parser.add_argument("--all", action="store_true", help="every small model, not only those that are checked in")
    parser.add_argument("--large", action="store_true", help="the larger models instead of the small ones")
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    if unknown := set(options.names) - {*SMALL, *LARGE}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for name in options.names or (LARGE if options.large else SMALL if options.all else STORED):
        folder = options.out / name
        if name not in STORED and folder.is_relative_to(DATA):
            parser.error(f"{name} is not to be checked in: give --out")
        print(name)
        built = (SMALL | LARGE)[name]()
        folder.mkdir(parents=True, exist_ok=True)
        # The test builds the model of the specification's example itself, from the same seed.
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / name if name == "spec_tensor_iterator" else folder
            save(built.model, target)
            if name in LARGE:
                expected = Expected(built.calls(np.random.RandomState(21)))
            else:
                expected = expect(name, built, target)
        expected.save(folder / "expected.npz")


if __name__ == "__main__":
    main()
