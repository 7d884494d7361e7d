"""Tiny models that see images, for tests: the llama of tests/models/data, whose tokens' embeddings are a model of their
own, and models of images with one layer or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu
from ovgpu.genai.vlm.joining import find_parameter, layer, parameter, replace_input
from ovgpu.model import Model, Node, Output
from ovgpu.ops.activation.softmax import Softmax8
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply, Subtract
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.arithmetic.trigonometry import Cos, Sin
from ovgpu.ops.comparison import Equal, Greater, LogicalAnd, Select
from ovgpu.ops.convolution.convolution import Convolution
from ovgpu.ops.infrastructure.graph import Result
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.movement.movement import Concat, Transpose
from ovgpu.ops.movement.pad import Pad12
from ovgpu.ops.movement.scatter import ScatterUpdate
from ovgpu.ops.reduction import ReduceSum
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.types import Type
from tests.genai.make_tokenizer import TEMPLATE, byte_tokenizer

LLAMA = Path(__file__).parents[1] / "models" / "data" / "llama" / "model.xml"
QWEN = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
GEMMA = ["<start_of_image>", "<image_soft_token>", "<end_of_image>"]
SPECIAL = {"llava": ["<image>"], "llava_next": ["<image>"], "gemma3": GEMMA, "qwen2_vl": QWEN, "qwen2_5_vl": QWEN}
FAMILIES = (*SPECIAL,)
TAGS = {
    family: {
        "tag": "<|vision_start|><|image_pad|><|vision_end|>" if special == QWEN else special[0],
        "video": "<|vision_start|><|video_pad|><|vision_end|>",
    }
    for family, special in SPECIAL.items()
}
"""Texts that stand for an image and for a video."""
PATCH, WIDTH = 7, 16  # pixels of a patch's side, and numbers that embed it
SIDE = 4 * PATCH  # of LLaVA's images
GRIDS = [(1, 2), (2, 1), (2, 2), (3, 1), (1, 3)]  # widths and heights of LLaVA-NeXT's, in parts
ROTARY = 4
Array = np.ndarray[Any, Any]


def make_folder(family: str, folder: Path) -> Path:
    """Write the files of a model, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models_of(family).items():
        ovgpu.save_model(model, folder / f"openvino_{name}_model.xml", compress_to_fp16=False)
    byte_tokenizer(*SPECIAL[family]).save(str(folder / "tokenizer.json"))
    texts = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    normal = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    llava: dict[str, Any] = {"size": {"shortest_edge": SIDE, "height": SIDE, "width": SIDE}}
    llava |= {"crop_size": {"height": SIDE, "width": SIDE}}
    llava["image_grid_pinpoints"] = [[SIDE * width, SIDE * height] for width, height in GRIDS]
    qwen = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 784, "max_pixels": 4900}
    files: dict[str, Any] = {
        "config": {
            "model_type": family,
            "vision_config": {"patch_size": PATCH, "window_size": 4 * PATCH},
            "image_newline": [n / WIDTH for n in range(-WIDTH, 2 * WIDTH)],
        },
        "generation_config": {"eos_token_id": 2},
        "preprocessor_config": {**normal, **(qwen if "qwen" in family else llava)},
        "special_tokens_map": texts,
        "tokenizer_config": texts,
    }
    for name, contents in files.items():
        (folder / f"{name}.json").write_text(json.dumps(contents))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def add_tokenizer_models(family: str, folder: Path) -> None:
    """Write the models of the tokenizer, which openvino_genai needs, with transformers and openvino_tokenizers."""
    import openvino
    import openvino_tokenizers
    import transformers

    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(*SPECIAL[family]),
        clean_up_tokenization_spaces=False,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    made.chat_template = TEMPLATE
    models = openvino_tokenizers.convert_tokenizer(made, with_detokenizer=True)
    for model, name in zip(models, ("openvino_tokenizer.xml", "openvino_detokenizer.xml")):
        openvino.save_model(model, folder / name)


def models_of(family: str) -> dict[str, Model]:
    """Return the models of a family by name."""
    language, text, width = _language(axes="qwen" in family, types=family == "gemma3")
    random = np.random.RandomState(5)
    found = {"language": language, "text_embeddings": text}
    if "qwen" not in family:
        return {**found, "vision_embeddings": _squares(random, width)}
    windows = family == "qwen2_5_vl"
    return {
        **found,
        "vision_embeddings": _patches(random),
        "vision_embeddings_merger": _merger(random, width, windows),
    }


def _language(axes: bool, types: bool) -> tuple[Model, Model, int]:
    """Return the language model, the model of its tokens' embeddings, and their width.

    With ``axes``, positions have three axes, whose weighted sum counts. With ``types``, tokens of an image attend to
    each other in both directions.
    """
    model = ovgpu.Core().read_model(LLAMA)
    ids = find_parameter(model, "input_ids")
    table = next(node for node in model.ops if node.op.name == "Gather" and ids in _sources(node, 2))
    width = table.ports[0].partial_shape[2].get_length()
    embeds = parameter("inputs_embeds", Type.f32, [-1, -1, width])
    for node in model.ops:
        if node.op.name == "ShapeOf" and node.sources[0] is ids.ports[0]:
            node.sources[0] = embeds.ports[0]
        node.sources = [embeds.ports[0] if source is table.ports[0] else source for source in node.sources]
    model.remove_parameter(ids)
    model.add_parameters([embeds])
    if axes:
        positions = parameter("position_ids", Type.i64, [3, -1, -1])
        weighted = layer(Multiply(), positions.ports[0], np.array([1, 2, 3]).reshape(3, 1, 1))
        replace_input(model, "position_ids", layer(ReduceSum(), weighted, [0]), [positions])
    if types:
        kinds = parameter("token_type_ids", Type.i64, [-1, -1])
        model.add_parameters([kinds])
        for node in model.ops:
            if node.op.name == "ScaledDotProductAttention":
                mask = node.sources[3]
                assert mask is not None
                node.sources[3] = layer(Select(), _same_image(kinds.ports[0], mask), np.float32(0), mask)
        model.changed()
    model.validate_nodes_and_infer_types()
    return model, _model(table.ports[0], "inputs_embeds", ids), width


def _same_image(types: Output, mask: Output) -> Output:
    """Return whether a token and a key are of the same image [batch, 1, tokens, keys].

    ``types`` [batch, tokens] is 1 for tokens of images, between which there is text. ``mask`` has the result's shape.
    """
    texts = layer(CumSum(), layer(Subtract(), np.int64(1), types), np.int64(1))
    images = layer(Multiply(), types, layer(Add(), texts, np.int64(1)))  # 0 for text
    tokens, keys = (layer(Gather8(), layer(ShapeOf3(), x), [axis], np.int64(0)) for x, axis in ((types, 1), (mask, 3)))
    past = layer(Concat(axis=0), np.array([0]), layer(Subtract(), keys, tokens))
    of_keys = layer(Pad12(pad_mode="constant"), images, past, [0, 0], np.int64(0))
    rows, columns = layer(Unsqueeze(), images, [1, 3]), layer(Unsqueeze(), of_keys, [1, 2])
    return layer(LogicalAnd(), layer(Equal(), rows, columns), layer(Greater(), rows, np.int64(0)))


def _sources(node: Node, depth: int) -> list[Node]:
    """Return the nodes before a node, up to a depth."""
    before = [source.node for source in node.sources if source is not None]
    return before + [other for one in before for other in _sources(one, depth - 1)] if depth > 1 else before


def _squares(random: Any, width: int) -> Model:
    """Return LLaVA's model of images: rows for 4 x 4 patches."""
    pixels = parameter("pixel_values", Type.f32, [-1, 3, -1, -1])
    kernel = _weights(random, width, 3, PATCH, PATCH)
    found = Convolution(strides=(PATCH, PATCH), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1))
    rows = layer(Reshape(special_zero=True), layer(found, pixels.ports[0], kernel), [0, width, 16])
    return _model(layer(Transpose(), rows, [0, 2, 1]), "last_hidden_state", pixels)


def _patches(random: Any) -> Model:
    """Return Qwen's model of patches."""
    count = 3 * 2 * PATCH**2
    patches = parameter("hidden_states", Type.f32, [-1, count])
    return _model(layer(MatMul(), patches.ports[0], _weights(random, count, WIDTH)), "last_hidden_state", patches)


def _merger(random: Any, width: int, windows: bool) -> Model:
    """Return Qwen's model of merged patches: attention, within windows first if there are some, and a product."""
    patches = parameter("hidden_states", Type.f32, [-1, WIDTH])
    mask = parameter("attention_mask", Type.f32, [1, -1, -1])
    rotary = parameter("rotary_pos_emb", Type.f32, [-1, ROTARY])
    inputs = [patches, mask, rotary]
    angles = layer(Concat(axis=1), layer(Cos(), rotary.ports[0]), layer(Sin(), rotary.ports[0]))
    x = layer(Add(), patches.ports[0], layer(MatMul(), angles, _weights(random, 2 * ROTARY, WIDTH)))
    if windows:
        window_mask = parameter("window_attention_mask", Type.f32, [1, -1, -1])
        order = parameter("window_index", Type.i64, [-1])
        inputs += [window_mask, order]
        groups = layer(Gather8(), layer(Reshape(special_zero=True), x, [-1, 4, WIDTH]), order.ports[0], [0])
        x = _attention(random, layer(Reshape(special_zero=True), groups, [-1, WIDTH]), window_mask.ports[0])
    x = _attention(random, x, mask.ports[0])
    merged = layer(Reshape(special_zero=True), x, [-1, 4 * WIDTH])
    rows = layer(MatMul(), merged, _weights(random, 4 * WIDTH, width))
    if windows:
        zeros = layer(Multiply(), rows, np.float32(0))
        rows = layer(ScatterUpdate(), zeros, order.ports[0], rows, [0])
    return _model(rows, "last_hidden_state", *inputs)


def _attention(random: Any, x: Output, mask: Output) -> Output:
    """Return rows [n, width] after an attention of one head, with the rows added."""
    query, key, value = (layer(MatMul(), x, _weights(random, WIDTH, WIDTH)) for _ in range(3))
    scores = layer(MatMul(transpose_b=True), layer(Unsqueeze(), query, [0]), layer(Unsqueeze(), key, [0]))
    shares = layer(Softmax8(axis=-1), layer(Add(), scores, mask))
    attended = layer(MatMul(), shares, layer(Unsqueeze(), value, [0]))
    return layer(Add(), x, layer(Reshape(special_zero=True), attended, layer(ShapeOf3(), x)))


def _weights(random: Any, *shape: int) -> Array:
    found: Array = random.normal(0, 1 / np.sqrt(shape[0]), shape).astype(np.float32)
    return found


def _model(value: Output, name: str, *inputs: Node) -> Model:
    """Return a model with one output."""
    value.set_names({name})
    model = Model([Node(Result(), [value], name=name)], [*inputs])
    model.validate_nodes_and_infer_types()
    return model
