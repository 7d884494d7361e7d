"""Transformers built without an exporter: the operations are those of an export, and the results OpenVINO's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lxml import etree

import ovgpu
from tests.harness import judge
from tests.harness.models.drive import Decoder
from tests.harness.models.transformer import Sizes, Transformer, bert, gpt2, llama

DATA = Path(__file__).parent / "data"
BERT, GPT2 = Sizes(2, 60, 5, 112, 211, 40), Sizes(2, 48, 4, 192, 211, 96)
LLAMA = Sizes(2, 48, 6, 112, 211, 0, 3)


def operations(net: Any) -> Counter[tuple[str, str]]:
    return Counter((x.get("type"), x.get("version")) for x in net.find("layers") if x.get("type") != "Const")


def compiled(library: Any, model: Transformer) -> Any:
    core = library.Core()
    return core.compile_model(core.read_model(*model.ir), "CPU", {} if library is ovgpu else judge.CONFIG)


@pytest.mark.parametrize(
    ("name", "model"), [("bert", bert(1, BERT)), ("gpt2", gpt2(1, GPT2)), ("llama", llama(1, LLAMA))]
)
def test_the_operations_are_those_of_an_export(name: str, model: Transformer) -> None:
    exported = etree.parse(DATA / name / "model.xml").getroot()
    assert operations(etree.fromstring(model.ir[0])) == operations(exported)


def test_bert_computes_what_openvino_does() -> None:
    pytest.importorskip("openvino")
    random = np.random.RandomState(2)
    ids, types = random.randint(0, BERT.vocabulary, (2, 9)), random.randint(0, 2, (2, 9))
    mask = np.arange(9) < np.array([[9], [5]])
    inputs = [ids, mask.astype(np.int64), types]
    model = bert(1, BERT)
    found, expected = (compiled(library, model)(inputs)[0] for library in (ovgpu, judge.openvino()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [gpt2(1, GPT2), llama(1, LLAMA)], ids=["gpt2", "llama"])
def test_decoders_compute_what_openvino_does(model: Transformer) -> None:
    pytest.importorskip("openvino")
    decoders = [Decoder(compiled(library, model)) for library in (ovgpu, judge.openvino())]
    tokens = np.arange(12)[None]
    for given in (tokens[:, :7], tokens[:, 7:8], tokens[:, 8:]):
        for decoder in decoders:
            decoder.step(given)
        np.testing.assert_allclose(*(decoder.logits for decoder in decoders), rtol=1e-4, atol=1e-4)
