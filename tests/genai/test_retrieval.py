"""TextEmbeddingPipeline and TextRerankPipeline: values and configurations as recorded from openvino_genai, on both
devices, asynchronous calls, and wrong uses."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai.text_model import read_model
from ovgpu.genai.text_rerank_pipeline import _add_scores
from ovgpu.ops.base.op import Op
from tests.emulator import state
from tests.genai import close, retrieval_cases
from tests.genai.make_tokenizer import PAIR_FOLDER
from tests.genai.record_wheel import RETRIEVAL
from tests.genai.retrieval_cases import DOCUMENTS, EMBEDDINGS, RERANKINGS, TEXTS, configurations, make_folder
from tests.harness.ir import Net

pytest.importorskip("tokenizers")

Embedding, Rerank = ov_genai.TextEmbeddingPipeline, ov_genai.TextRerankPipeline
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
Make = Callable[..., Any]
INPUTS = ("input_ids", "attention_mask")
Folders = Callable[[str], Path]


@cache
def recorded() -> Any:
    return json.loads(RETRIEVAL.read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return a function that makes the folder of a model, once."""
    return cache(lambda model: make_folder(model, tmp_path_factory.mktemp(model)))


@pytest.fixture(scope="module")
def make(folders: Folders) -> Make:
    """Return a function that makes the pipeline of a class and a model."""

    def made(kind: Any, model: str, device: str = "CPU", **keywords: Any) -> Any:
        return kind(folders(model), device, **EXACT, **keywords)

    return made


assert_close = partial(close.assert_close, tolerance=1e-5)


# ---- comparison with openvino_genai


def test_embeddings(make: Make) -> None:
    found = retrieval_cases.embeddings(ov_genai, make)
    assert list(found) == list(recorded()["embeddings"]) and len(found) == len(EMBEDDINGS)
    for name, vectors in found.items():
        assert_close(vectors, recorded()["embeddings"][name])


def test_rerankings(make: Make) -> None:
    found = retrieval_cases.rerankings(ov_genai, make)
    assert list(found) == list(recorded()["rerankings"]) and len(found) == len(RERANKINGS)
    for name, results in found.items():
        assert_close(results, recorded()["rerankings"][name])


def test_on_a_card(make: Make, emulated: str) -> None:
    def made(kind: Any, model: str, **keywords: Any) -> Any:
        return make(kind, model, emulated, **keywords)

    for name, vectors in retrieval_cases.embeddings(ov_genai, made, EMBEDDINGS[1:8:2]).items():
        assert_close(vectors, recorded()["embeddings"][name])
    for name, results in retrieval_cases.rerankings(ov_genai, made, RERANKINGS[1:2]).items():
        assert_close(results, recorded()["rerankings"][name])


@pytest.mark.parametrize("name", ["tokenizer.json", "openvino_tokenizer.xml"])
def test_tokens_that_are_cut(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(PAIR_FOLDER, tmp_path / "model")
    if name == "openvino_tokenizer.xml":
        pytest.importorskip("openvino_tokenizers")
        (folder / "tokenizer.json").unlink()
    tokenizer = ov_genai.Tokenizer(folder)
    assert retrieval_cases.tokens(tokenizer, tokenizer) == recorded()["tokens"]
    pairs = tokenizer.encode(["cat"], ["cat", "ab"])
    assert pairs.token_type_ids is not None
    np.testing.assert_array_equal(pairs.token_type_ids.data, [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]])
    with pytest.raises(ovgpu.Error, match="max_length must be at least 3, the number of special tokens, not 2"):
        tokenizer.encode(["a"], ["b"], max_length=2, truncation=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "truncation_side": "left"}))
    tokenizer = ov_genai.Tokenizer(folder)  # as openvino_genai's, whose model is converted from this configuration
    pair = tokenizer.encode(["abcde"], ["fghi"], max_length=8, truncation=True)
    np.testing.assert_array_equal(pair.input_ids.data, [[2, 13, 14, 15, 3, 18, 19, 3]])


def test_limits_in_tokenizer_json_have_no_effect(tmp_path: Path) -> None:
    """As in openvino_genai, whose models have that of tokenizer_config.json."""
    folder = shutil.copytree(PAIR_FOLDER, tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 10, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for config, length in (({"model_max_length": 48}, 48), ({}, 102)):
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert ov_genai.Tokenizer(folder).encode("a" * 100, truncation=True).input_ids.shape == [1, length]


@pytest.mark.parametrize("kind, name", [(Embedding, "embedding_config"), (Rerank, "rerank_config")])
def test_configurations(kind: Any, name: str) -> None:
    """openvino_genai writes numbers as texts, and takes -3 for 2**64 - 3: these keywords are refused here."""
    found, expected = configurations(kind.Config), recorded()[name]
    assert list(found) == list(expected)
    different = {case for case, outcome in found.items() if outcome != expected[case]}
    assert {found[case] for case in different} == {"RuntimeError"}
    texts = ("embed_instruction", "padding_side", "query_instruction")
    assert all(case.endswith("=-3") or case.partition("=")[0] in texts for case in different)


# ---- texts and calls


def test_no_texts(make: Make) -> None:
    """Nothing has no vectors, and no order."""
    embedding, rerank = make(Embedding, "encoder"), make(Rerank, "sigmoid")
    assert embedding.embed_documents([]) == embedding.embed([], "no ") == rerank.rerank("cat", []) == []
    embedding.start_embed_documents_async([])
    rerank.start_rerank_async("cat", ())
    assert embedding.wait_embed_documents() == rerank.wait_rerank() == []
    with pytest.raises(ovgpu.Error, match="embeddings of no texts were started"):
        embedding.wait_embed_query()


@pytest.mark.parametrize("texts", [tuple(TEXTS), dict.fromkeys(TEXTS), np.array(TEXTS)], ids=lambda x: type(x).__name__)
def test_collections_of_texts(texts: Any, make: Make) -> None:
    embedding = make(Embedding, "encoder")
    assert embedding.embed_documents(texts) == embedding.embed_documents(TEXTS)


def test_asynchronous_calls(make: Make) -> None:
    embedding = make(Embedding, "encoder", query_instruction="no ")
    vectors = embedding.embed_documents(TEXTS)
    embedding.start_embed_documents_async(TEXTS)
    assert embedding.wait_embed_documents() == embedding.wait_embed_documents() == vectors
    assert embedding.wait_embed_query() == vectors[0]
    query = embedding.embed_query("cat")
    embedding.start_embed_query_async("cat")
    assert embedding.wait_embed_query() == query == embedding.embed(["cat"], "no ")[0]
    rerank = make(Rerank, "qwen3")
    best = rerank.rerank("cat", DOCUMENTS)
    for _ in range(2):
        rerank.start_rerank_async("cat", DOCUMENTS)
        assert rerank.wait_rerank() == best


def test_threads(make: Make) -> None:
    embedding = make(Embedding, "encoder")
    expected = [embedding.embed_query(text) for text in TEXTS]
    found: dict[int, list[Any]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: [embedding.embed_query(text) for text in TEXTS]}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(4)] == [expected] * 4


def test_equal_scores_keep_their_order(make: Make) -> None:
    results = make(Rerank, "sigmoid", top_n=9).rerank("cat", ["a", "no", "a", "no", "a"])
    assert [index for index, _ in results] in ([0, 2, 4, 1, 3], [1, 3, 0, 2, 4])


def test_only_vectors_leave_the_card(make: Make, emulated: str) -> None:
    """From the second call on, an inference is one graph."""
    embedding = make(Embedding, "encoder", emulated, pooling_type=Embedding.PoolingType.MEAN)
    vectors = embedding.embed_documents(TEXTS[:2])
    for _ in range(3):
        state.counters.reset()
        embedding.start_embed_documents_async(TEXTS[:2])
        assert_close(embedding.wait_embed_documents(), vectors)
        assert state.counters.d2h_bytes == 2 * retrieval_cases.SIZES.width * 4
    assert (state.counters.graph_launches, state.counters.launches, state.counters.allocs) == (1, 0, 0)


@pytest.mark.parametrize("model", ["sigmoid", "qwen3"])
def test_only_scores_leave_the_card(model: str, make: Make, emulated: str) -> None:
    rerank = make(Rerank, model, emulated, top_n=9)
    for _ in range(2):
        state.counters.reset()
        found = rerank.rerank("the cat", DOCUMENTS)
        assert state.counters.d2h_bytes == len(DOCUMENTS) * 4
        assert_close(found, recorded()["rerankings"][f"{model}, top_n=10"][0])


def test_a_language_model_computes_the_last_logits_alone(folders: Folders) -> None:
    model, folder = read_model(folders("qwen3"))
    _add_scores(model, ov_genai.Tokenizer(folder))
    heads = [node.ports[0].partial_shape for node in model.ops if node.op.name == "MatMul"]
    assert [str(shape) for shape in heads if shape[-1] == 211] == ["[?,..1,211]"]
    assert [str(port.partial_shape) for port in model.outputs] == ["[?]"]


# ---- models and folders


def test_last_token_of_a_tokenizer_that_pads_left(folders: Folders, tmp_path: Path) -> None:
    """openvino_genai takes another token of shorter texts, unless padding_side says the same."""
    folder = Path(shutil.copytree(folders("decoder"), tmp_path / "left"))
    (folder / "openvino_tokenizer.xml").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": "left"}))
    found = Embedding(folder, "CPU", pooling_type=Embedding.PoolingType.LAST_TOKEN, **EXACT).embed_documents(TEXTS)
    assert_close(found, recorded()["embeddings"]["decoder, pooling_type='LAST_TOKEN', padding_side='left'"][0])


def write_model(folder: Path, net: Net) -> Path:
    """Write a model with the tokenizer of pairs."""
    shutil.copytree(PAIR_FOLDER, folder, dirs_exist_ok=True)
    for path, data in zip(("openvino_model.xml", "openvino_model.bin"), net.build()):
        (folder / path).write_bytes(data)
    return folder


def small_model(folder: Path, outputs: dict[str, Any], inputs: tuple[str, ...] = INPUTS) -> Path:
    """Write a model without weights, whose outputs are the tokens in an element type and with a rank."""
    net = Net()
    ids, *_ = [net.parameter("i64", (-1, -1), name) for name in inputs]
    for name, (kind, rank) in outputs.items():
        axes = net.const(np.arange(2, rank))
        port = net.layer("Unsqueeze", "opset1", [ids, axes]) if rank > 2 else ids
        net.result(net.layer("Convert", "opset1", [port], {"destination_type": kind}, [kind], names=[name]))
    return write_model(folder, net)


@pytest.mark.parametrize("kind, number", [("f16", float), ("bf16", float), ("i8", int), ("u8", int)])
def test_other_element_types(kind: str, number: type, tmp_path: Path) -> None:
    folder = small_model(tmp_path, {"pooler_output": ("f32", 2), "last_hidden_state": (kind, 3)})
    last = Embedding.PoolingType.LAST_TOKEN
    vectors = Embedding(folder, "CPU", normalize=False, pooling_type=last).embed_documents(["a", "abc"])
    assert vectors == [[3], [3]] and isinstance(vectors[0][0], number)  # the last token is [SEP]


@pytest.mark.parametrize(
    "kind, outputs, inputs, message",
    [
        (Embedding, {"last_hidden_state": ("f32", 2)}, (), r"has the shape \[batch, length, width\], not \[\?,\?\]"),
        (Embedding, {"a": ("f32", 3), "b": ("f32", 3)}, (), "has no output last_hidden_state, only a, b"),
        (Embedding, {"a": ("f32", 3)}, ("input_ids",), "has no input attention_mask, only input_ids"),
        (Embedding, {"a": ("f32", 3)}, (*INPUTS, "pixels"), "has the input pixels: texts give"),
        (Rerank, {"logits": ("f32", 3)}, (), r"logits have the shape \[batch, labels\], not \[\?,\?,1\]"),
        (Rerank, {"a": ("f32", 2), "b": ("f32", 2)}, (), "has no output logits, only a, b"),
    ],
)
def test_models_that_do_not_fit(kind: Any, outputs: Any, inputs: Any, message: str, tmp_path: Path) -> None:
    folder = small_model(tmp_path, outputs, inputs or INPUTS)
    with pytest.raises(ovgpu.Error, match=message):
        kind(folder, "CPU")


def test_language_models_that_do_not_fit(folders: Folders, tmp_path: Path) -> None:
    folder = small_model(tmp_path / "shape", {"logits": ("f32", 2)})
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ovgpu.Error, match=r"logits have the shape \[batch, length, vocabulary\], not \[\?,\?\]"):
        Rerank(folder, "CPU")
    folder = Path(shutil.copytree(folders("qwen3"), tmp_path / "tokens"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"].pop("yes")
    tokenizer["model"]["merges"].remove(["ye", "s"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ovgpu.Error, match='the tokenizer has no tokens "yes" and "no"'):
        Rerank(folder, "CPU")


# ---- wrong uses


def test_calls_while_another_one_runs(tmp_path: Path) -> None:
    go = threading.Event()

    @ovgpu.register_op("HoldTexts", "retrieval_opset")
    class HoldTexts(Op):
        def infer_specs(self, x: Any) -> Any:
            return (x,)

        def evaluate(self, xp: Any, x: Any) -> Any:
            go.wait(30)
            return (x + 0,)

    net = Net()
    ids, _ = [net.parameter("i64", (-1, -1), name) for name in INPUTS]
    states = net.layer("Unsqueeze", "opset1", [ids, net.const(np.array([2]))])
    states = net.layer("Convert", "opset1", [states], {"destination_type": "f32"}, ["f32"])
    net.result(net.layer("HoldTexts", "retrieval_opset", [states], names=["last_hidden_state"]))
    embedding = Embedding(write_model(tmp_path, net), "CPU", normalize=False)
    embedding.start_embed_documents_async(["a", "b"])
    try:
        for call in (embedding.embed_documents, embedding.start_embed_documents_async):
            for texts in (["cat"], []):
                with pytest.raises(RuntimeError, match="busy"):
                    call(texts)
    finally:
        go.set()
    assert embedding.wait_embed_documents() == [[2.0], [2.0]]  # the first token is [CLS]


def test_waiting_for_nothing(make: Make) -> None:
    embedding, rerank = make(Embedding, "encoder"), make(Rerank, "sigmoid")
    for wait in (embedding.wait_embed_documents, embedding.wait_embed_query, rerank.wait_rerank):
        with pytest.raises(ovgpu.Error, match="there is nothing to wait for"):
            wait()


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"max_length": 0}, "max_length must be from 1 to 2147483647, not 0"),
        ({"max_length": -1}, "max_length must be from 1 to 2147483647, not 18446744073709551615"),
        ({"max_length": 1}, "max_length must be at least 2, the number of special tokens, not 1"),
        ({"batch_size": 0}, "batch_size must be from 1 to 2147483647, not 0"),
        ({"padding_side": "middle"}, "padding_side must be 'left' or 'right', not 'middle'"),
        ({"maximum": 3}, "maximum"),
        ({"config": Embedding.Config(), "normalize": False}, "normalize"),
        ({"pooling_type": 1}, "pooling_type must be a PoolingType, not 1"),
    ],
)
def test_configurations_that_are_refused(keywords: dict[str, Any], message: str, make: Make) -> None:
    with pytest.raises(RuntimeError, match=message):
        make(Embedding, "encoder", **keywords)


def test_lengths_that_are_refused(make: Make, folders: Folders, tmp_path: Path) -> None:
    for keywords, message in (
        ({"max_length": 0}, "max_length must be greater than 0, not 0"),
        ({"max_length": 2}, "max_length must be at least 3, the number of special tokens, not 2"),
    ):
        with pytest.raises(ovgpu.Error, match=message):
            make(Rerank, "sigmoid", **keywords)
    folder = Path(shutil.copytree(folders("sigmoid"), tmp_path / "model"))
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ovgpu.Error, match="pad_to_max_length needs max_length"):
        Rerank(folder, "CPU", pad_to_max_length=True)


def test_texts_of_another_type(make: Make) -> None:
    embedding, rerank = make(Embedding, "encoder", batch_size=2), make(Rerank, "sigmoid")
    for wrong in ("abc", 3, None, ["a", 3], [["a"]], iter(["a"])):
        for call in (
            lambda wrong=wrong: embedding.embed_documents(wrong),
            lambda wrong=wrong: embedding.embed(wrong, "a"),
            lambda wrong=wrong: embedding.start_embed_documents_async(wrong),
            lambda wrong=wrong: rerank.rerank("a", wrong),
            lambda wrong=wrong: rerank.start_rerank_async("a", wrong),
        ):
            with pytest.raises(TypeError, match=r"texts are a list of strings|a text is a string"):
                call()
    for query in (3, None, ["a"]):
        with pytest.raises(TypeError, match="a text is a string"):
            embedding.embed_query(query)
        with pytest.raises(TypeError, match="a text is a string"):
            rerank.rerank(query, ["a"])
    for call in (
        lambda: embedding.embed_query("a"),
        lambda: embedding.embed_documents([]),
        lambda: embedding.embed(["a"], "b"),
        lambda: embedding.start_embed_query_async("a"),
    ):
        with pytest.raises(ovgpu.Error, match="the number of texts must be batch_size, 2, not"):
            call()


@pytest.mark.parametrize("kind", [Embedding, Rerank])
def test_arguments_of_another_type(kind: Any, folders: Folders, tmp_path: Path) -> None:
    folder = folders("encoder" if kind is Embedding else "sigmoid")
    for path in (str(folder), bytes(folder)):
        kind(path, "CPU", None)
    other = Rerank.Config() if kind is Embedding else Embedding.Config()
    for config in (other, {"max_length": 3}):
        with pytest.raises(TypeError, match=f"config must be a {kind.__name__}.Config, not"):
            kind(folder, "CPU", config)
    with pytest.raises(TypeError, match="models_path is the path of a folder, not 3"):
        kind(3, "CPU")
    with pytest.raises(ovgpu.Error, match=r"has no openvino_model\.xml: `optimum-cli export openvino"):
        kind(tmp_path, "CPU")
    with pytest.raises(RuntimeError, match="XPU"):
        kind(folder, "XPU")


def test_configurations_are_copied(make: Make) -> None:
    config = Embedding.Config(max_length=6)
    embedding = make(Embedding, "encoder", config=config)
    config.max_length = 3
    config.embed_instruction = "no "
    assert_close(embedding.embed_documents(TEXTS), recorded()["embeddings"]["encoder, max_length=6"][0])
    with pytest.raises(ovgpu.Error, match=r"TextEmbeddingPipeline\.Config has no field top_n, only batch_size, embed"):
        Embedding.Config(top_n=3)
