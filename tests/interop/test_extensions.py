"""Libraries of operations for openvino: openvino's CPU runs models that have them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ovgpu
from ovgpu.api import core as module
from tests.runtime import models

MAKE = """
import sys, openvino, openvino_tokenizers
words = [f"{i} {word!r} {len(word)}" for i, word in enumerate(["a", "b", "ab", " "], 1)]
for name, model in zip(("tokenizer", "detokenizer"), openvino_tokenizers.build_rwkv_tokenizer(words)):
    openvino.save_model(model, f"{sys.argv[1]}/{name}.xml")
print(openvino_tokenizers._ext_path)
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with the models of a tokenizer of four words, and the path of the library with its operations.

    openvino_tokenizers changes openvino.Core, so that another process imports it.
    """
    if find_spec("openvino_tokenizers") is None:
        pytest.skip("openvino_tokenizers is not installed")
    folder = tmp_path_factory.mktemp("tokenizer")
    found = subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, capture_output=True, text=True)
    return folder, found.stdout.split()[-1]


def test_a_tokenizer(tokenizer: tuple[Path, str], emulated: str) -> None:
    folder, library = tokenizer
    core = ovgpu.Core()
    model = core.read_model(folder / "tokenizer.xml")
    with pytest.raises(ovgpu.UnsupportedOpError, match="TrieTokenizer of extension"):
        core.compile_model(model, "CPU")
    core.add_extension(library)
    for given in model, folder / "tokenizer.xml":
        tokens = core.compile_model(given, "CPU")(["ab a"])["input_ids"]
        assert tokens.tolist() == [[3, 4, 1]]
    text = core.compile_model(folder / "detokenizer.xml", "CPU")([tokens])[0]
    assert text.tolist() == ["ab a"]
    compiled: Any = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("PERFORMANCE_HINT") == "LATENCY"
    with pytest.raises(ovgpu.UnsupportedOpError, match="TrieTokenizer of extension"):
        core.compile_model(model, emulated)
    own = core.compile_model(ovgpu.read_model(*models.chain().build()), "CPU")
    assert isinstance(own, ovgpu.CompiledModel)


def test_libraries_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = ovgpu.Core()
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path in "nope.so", text:
        with pytest.raises(RuntimeError, match=r"(nope|text)\.so"):
            core.add_extension(path)
    assert core._extensions == ()
    for extension in 3, [core]:
        with pytest.raises(RuntimeError, match="operations are Python classes here"):
            core.add_extension(extension)
    without: Any = lambda: None
    monkeypatch.setattr(module, "package", without)
    with pytest.raises(RuntimeError, match="libraries need openvino"):
        core.add_extension("nope.so")
