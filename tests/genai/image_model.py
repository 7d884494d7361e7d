"""A tiny Stable Diffusion with random weights for tests, with the inputs and outputs of optimum-intel's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.make_tokenizer import FOLDER, VOCABULARY
from tests.harness.ir import Net, Port

WIDTH, TOKENS, SIZE = 8, 12, 8  # of the text encoder; height and width of latents
SHARE, DRIFT = 0.5, 0.001  # of the latents and of the timestep in the prediction of the linear UNet
LATENTS = (-1, 4, -1, -1)
KINDS: dict[str, dict[str, Any]] = {
    "StableDiffusionPipeline": {},
    "LatentConsistencyModelPipeline": {"guidance": True},
    "StableDiffusionInpaintPipeline": {"channels": 9},
}
"""Classes of model_index.json, and arguments of the UNet."""
SCHEDULER = {
    "_class_name": "PNDMScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "skip_prk_steps": True,
    "steps_offset": 1,
}


class _Writer:
    """Net in progress, with random weights."""

    def __init__(self, seed: int) -> None:
        self.net, self.random = Net(), np.random.RandomState(seed)

    def __call__(self, type: str, *inputs: Port, version: int = 1, name: str = "", **attrs: Any) -> Port:
        port: Port = self.net.layer(type, f"opset{version}", inputs, attrs, names=[name] if name else [])
        return port

    def weights(self, *shape: int, scale: float = 1.0) -> Port:
        """Add a constant whose rows give results of about the variance of their inputs."""
        deviation = scale / np.sqrt(np.prod(shape[1:]))
        return self.net.const(self.random.normal(0, deviation, shape).astype(np.float32))

    def dense(self, x: Port, width: int, to: int) -> Port:
        return self("MatMul", x, self.weights(to, width), transpose_a=False, transpose_b=True)

    def convolution(self, x: Port, channels: int, to: int, stride: int = 1, scale: float = 1.0) -> Port:
        attrs = {"strides": [stride] * 2, "dilations": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}
        return self("Convolution", x, self.weights(to, channels, 3, 3, scale=scale), **attrs, auto_pad="explicit")

    def i64(self, *values: int) -> Port:
        return self.net.const(np.array(values, np.int64))

    def add(self, a: Port, b: Port, op: str = "Add") -> Port:
        return self(op, a, b, auto_broadcast="numpy")

    def per_channel(self, x: Port) -> Port:
        """Reshape [batch, width] to [batch, width, 1, 1]."""
        return self("Unsqueeze", x, self.i64(2, 3))

    def build(self, value: Port, name: str) -> tuple[bytes, bytes]:
        self.net.nodes[value.layer].names.append(name)
        self.net.result(value)
        return self.net.build()


def text_encoder() -> tuple[bytes, bytes]:
    """Return input_ids [batch, TOKENS] -> last_hidden_state [batch, TOKENS, WIDTH], pooler_output [batch, WIDTH]."""
    w = _Writer(1)
    ids = w.net.parameter("i64", (-1, -1), "input_ids")
    table = w.net.const(w.random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    hidden = w("Gather", table, ids, w.net.const(0, "i64"), version=8, batch_dims=0)
    hidden = w.add(hidden, w.net.const(w.random.normal(size=(1, TOKENS, WIDTH)).astype(np.float32)))
    hidden = w("Tanh", w.dense(hidden, WIDTH, WIDTH), name="last_hidden_state")
    pooled = w("ReduceMean", hidden, w.i64(1), keep_dims=False)
    w.net.result(hidden)
    return w.build(pooled, "pooler_output")


def unet(channels: int = 4, guidance: bool = False) -> tuple[bytes, bytes]:
    """Return sample, timestep [1], encoder_hidden_states [batch, TOKENS, WIDTH] -> out_sample, as large as latents.

    With ``guidance``, it has the input timestep_cond [1, WIDTH], too.
    """
    w = _Writer(2)
    sample = w.net.parameter("f32", (-1, channels, -1, -1), "sample")
    timestep = w.net.parameter("i64", (1,), "timestep")
    states = w.net.parameter("f32", (-1, TOKENS, WIDTH), "encoder_hidden_states")
    x = w.convolution(sample, channels, WIDTH)
    time = w.net.layer("Convert", "opset1", [timestep], {"destination_type": "f32"}, ["f32"])
    periods = w.net.const(np.geomspace(0.3, 0.003, WIDTH).astype(np.float32))
    condition = w.dense(w("Sin", w("Unsqueeze", w.add(time, periods, "Multiply"), w.i64(0))), WIDTH, WIDTH)
    if guidance:
        condition = w.add(condition, w.dense(w.net.parameter("f32", (-1, WIDTH), "timestep_cond"), WIDTH, WIDTH))
    text = w("ReduceMean", w("Tanh", w.dense(states, WIDTH, WIDTH)), w.i64(1), keep_dims=False)
    condition = w.add(condition, w.dense(text, WIDTH, WIDTH))
    x = w("Tanh", w.add(x, w.per_channel(condition)))
    return w.build(w.convolution(x, WIDTH, 4, scale=1.4), "out_sample")


def vae_decoder() -> tuple[bytes, bytes]:
    """Return latent_sample -> sample [batch, 3, 2 height, 2 width] of about -1 to 1."""
    w = _Writer(3)
    x = w("Tanh", w.convolution(w.net.parameter("f32", LATENTS, "latent_sample"), 4, WIDTH, scale=0.4))
    x = w("DepthToSpace", w.convolution(x, WIDTH, 12), mode="blocks_first", block_size=2)
    return w.build(w.convolution(x, 3, 3), "sample")


def vae_encoder() -> tuple[bytes, bytes]:
    """Return sample [1, 3, height, width] -> latent_parameters [1, 8, height / 2, width / 2]."""
    w = _Writer(4)
    x = w("Tanh", w.convolution(w.net.parameter("f32", (-1, 3, -1, -1), "sample"), 3, WIDTH))
    return w.build(w.convolution(x, WIDTH, 8, stride=2, scale=2.0), "latent_parameters")


def linear_unet() -> tuple[bytes, bytes]:
    """Return the inputs of `unet` -> `SHARE` of the latents plus `DRIFT` times the timestep."""
    w = _Writer(0)
    sample = w.net.parameter("f32", LATENTS, "sample")
    timestep = w.net.parameter("i64", (1,), "timestep")
    states = w.net.parameter("f32", (-1, TOKENS, WIDTH), "encoder_hidden_states")
    time = w.net.layer("Convert", "opset1", [timestep], {"destination_type": "f32"}, ["f32"])
    x = w.add(sample, w.net.const(np.float32(SHARE)), "Multiply")
    x = w.add(x, w.add(time, w.net.const(np.float32(DRIFT)), "Multiply"))
    none = w("ReduceSum", w.add(states, w.net.const(np.float32(0)), "Multiply"), w.i64(0, 1, 2), keep_dims=False)
    return w.build(w.add(x, none), "out_sample")


def make_folder(folder: Path, kind: str = "StableDiffusionPipeline", linear: bool = False) -> Path:
    """Write the files of a pipeline, and return their folder. ``linear`` takes the linear UNet."""
    arguments = KINDS[kind]
    parts: dict[str, tuple[tuple[bytes, bytes], dict[str, Any]]] = {
        "text_encoder": (text_encoder(), {"max_position_embeddings": TOKENS, "num_hidden_layers": 1}),
        "unet": (
            linear_unet() if linear else unet(**arguments),
            {
                "in_channels": arguments.get("channels", 4),
                "sample_size": SIZE,
                "time_cond_proj_dim": WIDTH if "guidance" in arguments else None,
            },
        ),
        "vae_decoder": (vae_decoder(), VAE),
        "vae_encoder": (vae_encoder(), VAE),
    }
    for name, ((xml, weights), config) in parts.items():
        path = folder / name
        path.mkdir(parents=True)
        (path / "openvino_model.xml").write_bytes(xml)
        (path / "openvino_model.bin").write_bytes(weights)
        (path / "config.json").write_text(json.dumps(config))
    shutil.copytree(FOLDER, folder / "tokenizer")
    index = {"_class_name": kind, "text_encoder": ["transformers", "CLIPTextModel"]}
    index |= {"unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    return folder


VAE = {"block_out_channels": [4, 8], "latent_channels": 4, "scaling_factor": 0.18215}
