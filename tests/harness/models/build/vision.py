"""Vision models: pixels [batch, 3, height, width] -> classes, maps or boxes."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset14 as ops

from ..drive import Call
from ._convert import Built, Calls, converted, exported, normal, outputs_of, perturbed, tokens

Shape = tuple[int, ...]


def images(*shapes: Shape, name: str = "pixel_values") -> Calls:
    """Return calls with random images of these shapes, for an input of that name."""
    return lambda random: [Call({name: normal(random, *shape)}) for shape in shapes]


def classifier(model_type: str, seed: int, shapes: tuple[Shape, ...], fixed: bool = False, **config: Any) -> Built:
    """Build a classifier by its model type in transformers: pixel_values -> logits. `fixed` makes shapes static."""
    import torch
    from transformers import AutoConfig, AutoModelForImageClassification

    torch.manual_seed(seed)
    module = AutoModelForImageClassification.from_config(AutoConfig.for_model(model_type, **config))
    module = perturbed(module, torch.randn(*shapes[0]))
    make = partial(exported, module, "image-classification", fixed=shapes[0] if fixed else None)
    return Built(make, images(*shapes), module)


def _traced(module: Any, outputs: list[str], shapes: tuple[Shape, ...], dynamic: Shape) -> Built:
    """Convert a model that optimum-intel does not export."""
    import torch

    example = torch.randn(*shapes[0])
    wrapped = outputs_of(perturbed(module, example), ["pixel_values"], outputs)
    make = partial(converted, wrapped, {"pixel_values": (example, [*dynamic])}, outputs)
    return Built(make, images(*shapes), wrapped)


def mobilenet(shapes: tuple[Shape, ...], dynamic: Shape, **config: Any) -> Built:
    """Build MobileNetV2, with padding computed for one size of images: pixel_values -> logits."""
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(55)
    module = MobileNetV2ForImageClassification(MobileNetV2Config(**config))
    return _traced(module, ["logits"], shapes, dynamic)


def efficientnet(shapes: tuple[Shape, ...], **config: Any) -> Built:
    """Build EfficientNet (depthwise convolution, squeeze and excitation): pixel_values -> logits."""
    import torch
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    torch.manual_seed(57)
    module = EfficientNetForImageClassification(EfficientNetConfig(**config))
    # The original pool has a kernel larger than the image, which OpenVINO refuses.
    module.efficientnet.pooler = torch.nn.AdaptiveAvgPool2d(1)
    return _traced(module, ["logits"], shapes, (-1, 3, -1, -1))


def segformer(shapes: tuple[Shape, ...], **config: Any) -> Built:
    """Build SegFormer, whose levels are resized to one another: pixel_values -> logits per pixel."""
    import torch
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(58)
    module = perturbed(SegformerForSemanticSegmentation(SegformerConfig(**config)))
    return Built(partial(exported, module, "semantic-segmentation"), images(*shapes))


def yolos(shapes: tuple[Shape, ...], **config: Any) -> Built:
    """Build YOLOS, whose positions are resized to the image: pixel_values -> logits, pred_boxes."""
    import torch
    from transformers import YolosConfig, YolosForObjectDetection

    torch.manual_seed(59)
    module = YolosForObjectDetection(YolosConfig(**config))
    return _traced(module, ["logits", "pred_boxes"], shapes, (-1, 3, -1, -1))


def clip(text: dict[str, Any], vision: dict[str, Any], projection: int) -> Built:
    """Build CLIP: input_ids, attention_mask, pixel_values -> similarities and embeddings."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(60)
    module = perturbed(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=projection)))
    vocabulary, size = module.config.text_config.vocab_size, module.config.vision_config.image_size

    def calls(random: np.random.RandomState) -> list[Call]:
        recorded = []
        for images, texts, time in ((1, 3, 9), (2, 2, 6)):
            mask = np.ones((texts, time), np.int64)
            mask[-1, time - 2 :] = 0
            ids, pixels = tokens(random, vocabulary, texts, time), normal(random, images, 3, size, size)
            recorded.append(Call({"input_ids": ids, "pixel_values": pixels, "attention_mask": mask}))
        return recorded

    return Built(partial(exported, module, "zero-shot-image-classification"), calls)


def unet(
    widths: Shape = (12, 18, 24), groups: int = 3, shape: Shape = (-1, 3, -1, -1), size: Shape = (2, 3, 24, 36)
) -> Built:
    """Build the U-Net of a diffusion model: group norms, transposed convolution, skip connections, and a time step."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, of: int, width: int) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.GroupNorm(groups, of), nn.GroupNorm(groups, width)
            self.conv_1, self.conv_2 = nn.Conv2d(of, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
            self.time, self.skip = nn.Linear(widths[0], width), nn.Conv2d(of, width, 1)

        def forward(self, x: Any, time: Any) -> Any:
            y = self.conv_1(nn.functional.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.conv_2(nn.functional.silu(self.norm_2(y)))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = [*pairwise(widths)]
            self.stem, self.head = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 3, padding=1)
            self.down = nn.ModuleList(Block(a, a) for a, _ in pairs)
            self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairs)
            self.middle = Block(widths[-1], widths[-1])
            self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(pairs))
            self.up = nn.ModuleList(Block(2 * a, a) for a, _ in reversed(pairs))
            self.register_buffer("rates", torch.exp(-torch.arange(widths[0] // 2) / 2.0))

        def forward(self, image: Any, step: Any) -> Any:
            angles = step[:, None] * self.rates
            time = torch.cat([angles.sin(), angles.cos()], -1)
            x, skips = self.stem(image), []
            for block, shrink in zip(self.down, self.shrink):
                x = block(x, time)
                skips.append(x)
                x = shrink(x)
            x = self.middle(x, time)
            for grow, block in zip(self.grow, self.up):
                x = block(torch.cat([grow(x), skips.pop()], 1), time)
            return self.head(x)

    torch.manual_seed(61)
    inputs = {"image": (torch.randn(*size), [*shape]), "step": (torch.rand(size[0]), [shape[0]])}
    module = perturbed(UNet())
    sizes = [size] if shape[0] > 0 else [size, (1, 3, 32, 20)]

    def calls(random: np.random.RandomState) -> list[Call]:
        return [Call({"image": normal(random, *s), "step": np.float32(9) * normal(random, s[0])}) for s in sizes]

    return Built(partial(converted, module, inputs, ["noise"]), calls, module)


def _detector(width: int, classes: int) -> Any:
    """Build a convolutional detector: image -> boxes [batch, n, 4] as corners, scores [batch, classes, n]."""
    import torch
    from torch import nn

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.1))
            self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, width, 3, 1, 1), nn.Hardswish())
            self.head = nn.Conv2d(width, 4 + classes, 1)

        def forward(self, image: Any) -> Any:
            y = self.head(self.down(self.stem(image)))
            rows, columns = torch.arange(y.shape[2]), torch.arange(y.shape[3])
            cells = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).float()
            centres, sizes = cells + y[:, :2].sigmoid(), 2.0 * y[:, 2:4].exp()
            boxes = torch.cat([centres - sizes / 2, centres + sizes / 2], 1)
            return boxes.flatten(2).transpose(1, 2), y[:, 4:].sigmoid().flatten(2)

    torch.manual_seed(62)
    return perturbed(Detector(), torch.randn(2, 3, 32, 40))


def detector(width: int = 14, classes: int = 3) -> Built:
    """Build a detector that ends in NonMaxSuppression: image -> selected boxes, their indices and scores."""
    return Built(partial(_detector_model, width, classes), images((2, 3, 32, 40), (1, 3, 44, 28), name="image"))


def _detector_model(width: int, classes: int) -> ov.Model:
    import torch

    shape = [-1, 3, -1, -1]
    model = converted(_detector(width, classes), {"image": (torch.randn(2, 3, 32, 40), shape)}, ["boxes", "scores"])
    boxes, scores = (result.input_value(0) for result in model.get_results())
    selected = ops.non_max_suppression(
        boxes, scores, np.int64(5), np.float32(0.4), np.float32(0.5), box_encoding="corner", output_type="i64"
    )
    batch_and_box = ops.gather(selected.output(0), np.array([0, 2]), np.int64(1))
    results = [ops.gather_nd(boxes, batch_and_box), selected.output(0), selected.output(1), selected.output(2)]
    model = ov.Model([ops.result(x) for x in results], model.get_parameters(), "detector")
    for port, name in zip(model.outputs, ("kept", "indices", "kept_scores", "count")):
        port.get_tensor().set_names({name})
    return model


def preprocessed(width: int = 10, classes: int = 7) -> Built:
    """Build a small network behind openvino.preprocess: u8 pixels [batch, height, width, 3] of any size, resized."""

    def calls(random: np.random.RandomState) -> list[Call]:
        shapes = (2, 41, 33, 3), (1, 30, 38, 3), (1, 19, 62, 3)
        tints = [random.randint(0, 128, (shape[0], 1, 1, 3)) for shape in shapes]
        images = [tint + random.randint(0, 129, shape) for tint, shape in zip(tints, shapes)]
        return [Call({"image": image.astype(np.uint8)}) for image in images]

    return Built(partial(_preprocessed_model, width, classes), calls)


def _preprocessed_model(width: int, classes: int) -> ov.Model:
    import torch
    from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm
    from torch import nn

    torch.manual_seed(63)
    network = nn.Sequential(
        nn.Conv2d(3, width, 5, 2, bias=False), nn.BatchNorm2d(width), nn.ReLU6(), nn.AvgPool2d(3, 2, 1),
        nn.Conv2d(width, width, 3, groups=width // 2), nn.PReLU(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, classes), nn.LogSoftmax(1),
    )  # fmt: skip
    example = torch.randn(2, 3, 30, 38)
    model = converted(perturbed(network, example), {"image": (example, [-1, 3, 30, 38])}, ["scores"])
    steps = PrePostProcessor(model)
    source = steps.input().tensor()
    source.set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(ColorFormat.BGR)
    source.set_spatial_dynamic_shape()
    steps.input().model().set_layout(ov.Layout("NCHW"))
    pixels = steps.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ColorFormat.RGB)
    pixels.resize(ResizeAlgorithm.RESIZE_LINEAR).mean([123.0, 117.0, 104.0]).scale([58.0, 57.0, 57.5])
    return steps.build()
