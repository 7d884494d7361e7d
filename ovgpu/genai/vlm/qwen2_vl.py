"""Classes Qwen2VL and Qwen2_5VL: images and videos of Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, sqrt
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.vlm.decoder import EmbeddedPrompt
from ovgpu.genai.vlm.family import Array, Family, Grid, Vision
from ovgpu.genai.vlm.joining import constant, find_parameter, layer, only_value, parameter, replace_input
from ovgpu.genai.vlm.parts import Parts, mean_and_deviation, size_of
from ovgpu.model import Model
from ovgpu.model.ports import port_names
from ovgpu.ops.activation.activation import Clamp
from ovgpu.ops.arithmetic.arithmetic import Multiply, Subtract
from ovgpu.ops.comparison import Equal, Select
from ovgpu.ops.convert import Convert
from ovgpu.ops.image.interpolate import Interpolate11
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.types import Type

FRAMES = 2  # frames that become one, which an image repeats
MAX_RATIO = 200  # of height and width
THETA = np.float32(10000)  # base of the rotary embedding of patches
PIXELS, SIZE, SHAPE = "pixels", "size", "patches_shape"
ROTARY, WINDOWS, ORDER = "rotary_pos_emb", "windows", "window_index"


class Qwen2VL(Family):
    """An image keeps its proportions, and has a token for ``merge_size`` squared patches. Positions have three axes.

    One model resizes and normalises an image, cuts it into patches, and embeds them. Frames of a video are embedded in
    pairs, which do not attend to each other.
    """

    image_tag = "<|vision_start|><|image_pad|><|vision_end|>"
    video_tag = "<|vision_start|><|video_pad|><|vision_end|>"

    def __init__(self, parts: Parts) -> None:
        settings, config = parts.processor, parts.config
        self._patch, self._merge = size_of(settings, "patch_size", 14), size_of(settings, "merge_size", 2)
        names = ("min_pixels", "max_pixels")
        if all(settings.get(name) is None for name in names):
            names = ("size.shortest_edge", "size.longest_edge")
        self._least, self._most = (size_of(settings, *entry) for entry in zip(names, (3136, 12845056)))
        if size_of(settings, "temporal_patch_size", FRAMES) != FRAMES:
            raise Error(f"the images' temporal_patch_size must be {FRAMES}")
        self._tokens_per_second = size_of(config, "vision_config.tokens_per_second", 2)
        self._window = size_of(config, "vision_config.window_size", 112) // self._merge // self._patch or 1
        self.image_token, self.video_token = parts.token("<|image_pad|>"), parts.token("<|video_pad|>")
        model = self._model(
            parts.read("vision_embeddings"), parts.read("vision_embeddings_merger"), *mean_and_deviation(settings)
        )
        self._rotary = find_parameter(model, ROTARY).ports[0].partial_shape[1].get_length()
        self._names = port_names(model.inputs)
        self._request = parts.compile(model, "vision_embeddings_merger")

    def image(self, pixels: Array) -> Vision:
        return self._vision([pixels[np.newaxis]])

    def video(self, frames: Array) -> Vision:
        return self._vision([frames[i : i + FRAMES] for i in range(0, len(frames), FRAMES)])

    def text_of(self, vision: Vision, tag: str) -> str:
        pad = "<|image_pad|>" if tag == self.image_tag else "<|video_pad|>"
        return tag.replace(pad, pad * len(vision.rows))

    def embed(self, tokens: Sequence[int], images: Sequence[Vision], videos: Sequence[Vision]) -> EmbeddedPrompt:
        prompt = super().embed(tokens, images, videos)
        positions = self._positions(tokens, [vision.grid for vision in images], [vision.grid for vision in videos])
        return replace(prompt, positions=positions, shift=int(positions.max(initial=-1)) + 1 - len(tokens))

    # ---- images

    def _vision(self, groups: Sequence[Array]) -> Vision:
        """Return the embeddings of groups of frames, one frame or two."""
        height, width = self._size(*groups[0].shape[1:3])
        rows, columns = height // self._patch, width // self._patch
        merged = rows // self._merge, columns // self._merge
        inputs: dict[str, Any] = {
            SIZE: [height, width],
            SHAPE: [1, FRAMES * 3, *(n for extent in merged for n in (extent, self._merge, self._patch))],
            ROTARY: self._angles(rows, columns),
        } | self._windows(*merged)
        found = []
        for frames in groups:
            inputs[PIXELS] = frames
            arrays = {i: np.asarray(inputs[name]) for i, name in enumerate(self._names)}
            found.append(self._request.infer(arrays)[0])
        return Vision(np.concatenate(found), (len(groups), *merged))

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which an image is resized: multiples of merged patches, within the limits of pixels.

        Raises: Error for an image that is more than `MAX_RATIO` times as long as it is wide.
        """
        if max(height, width) // min(height, width) > MAX_RATIO:
            raise Error(f"an image is at most {MAX_RATIO} times as long as wide, not {height} x {width}")
        unit, pixels = self._patch * self._merge, height * width
        rows, columns = (floor(np.float32(extent) / np.float32(unit) + 0.5) for extent in (height, width))
        if rows * columns * unit**2 > self._most:
            scale = sqrt(pixels / self._most)
            rows, columns = (floor(extent / scale / unit) for extent in (height, width))
        elif rows * columns * unit**2 < self._least:
            scale = sqrt(self._least / pixels)
            rows, columns = (ceil(extent * scale / unit) for extent in (height, width))
        if not rows or not columns:
            raise Error(f"an image of {height} x {width} has no patch of {unit} within {self._most} pixels")
        return rows * unit, columns * unit

    def _angles(self, rows: int, columns: int) -> Array:
        """Return the angles of the rotary embedding [patches, width], f32: of rows, then of columns.

        Patches that become one token follow each other.
        """
        half = self._rotary // 2
        frequencies = np.float32(1) / THETA ** (np.arange(half, dtype=np.float32) / np.float32(half))
        grid = np.indices((rows, columns)).reshape(2, rows // self._merge, self._merge, -1, self._merge)
        places = grid.transpose(0, 1, 3, 2, 4).reshape(2, -1, 1).astype(np.float32)
        return np.concatenate([axis * frequencies for axis in places], axis=1)

    def _windows(self, rows: int, columns: int) -> dict[str, Array]:
        """Return the inputs for attention within windows, of an image of so many tokens."""
        return {}

    def _model(self, patches: Model, merger: Model, mean: Array, deviation: Array) -> Model:
        """Return the model of images. ``patches`` embeds patches, and ``merger`` gives the rows of tokens."""
        pixels = parameter(PIXELS, Type.u8, [-1, -1, -1, 3])
        size, shape = parameter(SIZE, Type.i64, [2]), parameter(SHAPE, Type.i64, [8])
        x = layer(Transpose(), layer(Convert(destination_type=Type.f32), pixels.ports[0]), [0, 3, 1, 2])
        resized = Interpolate11(
            mode="cubic", shape_calculation_mode="sizes", coordinate_transformation_mode="pytorch_half_pixel"
        )
        x = layer(Clamp(min=0.0, max=255.0), layer(resized, x, size.ports[0], [2, 3]))
        scale = np.float32(1) / (deviation * np.float32(255))
        x = layer(Subtract(), x, _channels(mean * np.float32(255)))
        x = layer(Multiply(), x, _channels(scale))
        x = layer(Broadcast3(mode="bidirectional"), x, [FRAMES, 1, 1, 1])
        x = layer(Transpose(), layer(Reshape(special_zero=True), x, shape.ports[0]), [0, 2, 5, 3, 6, 1, 4, 7])
        area = self._patch**2
        x = layer(Transpose(), layer(Reshape(special_zero=True), x, [-1, FRAMES, 3, area]), [0, 2, 1, 3])
        x = layer(Reshape(special_zero=True), x, [-1, 3 * FRAMES * area])
        replace_input(patches, "hidden_states", x, [pixels, size, shape])
        replace_input(merger, "hidden_states", only_value(patches), patches.parameters)
        mask = constant(np.zeros((1, 1, 1), np.float32))  # of patches that all attend to each other
        replace_input(merger, "attention_mask", mask, [])
        return merger

    # ---- positions

    def _positions(self, tokens: Sequence[int], images: Sequence[Grid], videos: Sequence[Grid]) -> Array:
        """Return the positions [3, 1, tokens] of time, height and width."""
        grids = {self.image_token: iter(images), self.video_token: iter(videos)}
        found = np.empty((3, len(tokens)), np.int64)
        i = position = 0
        while i < len(tokens):
            if tokens[i] not in grids:
                found[:, i] = position
                i, position = i + 1, position + 1
                continue
            grid = next(grids[tokens[i]])
            places = np.indices(grid).reshape(3, -1)
            places[0] *= self._tokens_per_second
            found[:, i : i + places.shape[1]] = position + places
            i, position = i + places.shape[1], position + int(places.max()) + 1
        return found[:, np.newaxis]


class Qwen2_5VL(Qwen2VL):
    """As Qwen2-VL, but most layers of images attend within windows of patches."""

    def _windows(self, rows: int, columns: int) -> dict[str, Array]:
        row, column = np.indices((rows, columns)) // self._window
        windows = (row * ceil(columns / self._window) + column).ravel()
        order = np.argsort(windows, kind="stable")
        return {ORDER: order, WINDOWS: np.repeat(windows[order], self._merge**2)}

    def _model(self, patches: Model, merger: Model, mean: Array, deviation: Array) -> Model:
        model = super()._model(patches, merger, mean, deviation)
        windows = parameter(WINDOWS, Type.i64, [-1])
        rows, columns = (layer(Unsqueeze(), windows.ports[0], axes) for axes in ([0, 2], [0, 1]))
        mask = layer(Select(), layer(Equal(), rows, columns), np.float32(0), np.float32(-np.inf))
        replace_input(model, "window_attention_mask", mask, [windows])
        return model


def _channels(values: Array) -> Array:
    """Return a number for each channel of images [n, 3, height, width]."""
    return values.reshape(1, 3, 1, 1)
