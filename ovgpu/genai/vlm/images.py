"""Images and videos that a program gives, and their resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.vlm.results import VideoMetadata

Array = np.ndarray[Any, Any]
BITS = 22  # of the fraction of a weight, so that sums of bytes times weights fit into 32 bits


def images_of(tensors: Any) -> list[Array]:
    """Return the images of a tensor, or of a list of them: u8 [height, width, 3].

    A tensor is [height, width, channels], or [n, height, width, channels] for n images. Grey images, of 1 channel, get
    three equal ones, and the fourth one, transparency, is left out. Raises: TypeError for other values, Error for
    tensors of another type or rank, without a pixel, or with other than 1, 3 or 4 channels.
    """
    return [image for tensor in _listed(tensors, "images") for image in _pixels(tensor, "image")]


def videos_of(tensors: Any, metadata: Any) -> list[Array]:
    """Return the frames of each video of a list: u8 [n, height, width, 3].

    ``metadata`` has a `VideoMetadata` for each video, or none. Raises: TypeError and Error as `images_of`; Error if the
    numbers of videos and metadata differ, or a frame is not there.
    """
    videos = [_pixels(tensor, "video") for tensor in _listed(tensors, "videos")]
    given = [] if metadata is None else metadata
    if not isinstance(given, (list, tuple)) or any(not isinstance(one, VideoMetadata) for one in given):
        raise TypeError(f"videos_metadata is a list of VideoMetadata, not {metadata!r}")
    if given and len(given) != len(videos):
        raise Error(f"there are {len(videos)} videos, and videos_metadata for {len(given)}")
    return [_chosen(video, one) for video, one in zip(videos, given or [VideoMetadata()] * len(videos))]


@dataclass(frozen=True)
class Kernel:
    """Weights of pixels by their distance from the centre. Those of ``reach`` and more are 0."""

    reach: int
    weights: Callable[[Array], Array]


def _keys(x: Array) -> Array:
    """Return Keys' cubic kernel (1981) with a = -0.5."""
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    value: Array = np.where(x < 1, near, far)
    return value


CUBIC, LINEAR = Kernel(2, _keys), Kernel(1, lambda x: 1 - x)


def resize(image: Array, height: int, width: int, kernel: Kernel = CUBIC) -> Array:
    """Return an image u8 [height, width, channels], interpolated with antialiasing.

    The kernel spreads over the pixels that become one. As in openvino_genai, the width comes first, sums are integers,
    and each of the two steps rounds to bytes.
    """
    for axis, size in ((1, width), (0, height)):
        if image.shape[axis] != size:
            image = _resampled(image, axis, size, kernel)
    return image


def normalised(image: Array, mean: Array, deviation: Array) -> Array:
    """Return an image u8 [height, width, 3] as f32 [3, height, width]: from 0 to 1, less a mean, over a deviation."""
    values: Array = (image.astype(np.float32) / np.float32(255) - mean) / deviation
    return values.transpose(2, 0, 1)


def _resampled(image: Array, axis: int, size: int, kernel: Kernel) -> Array:
    """Return an image resized along an axis."""
    extent = image.shape[axis]
    first, weights = _weights(extent, size, kernel)
    shape, along = list(image.shape), [1] * image.ndim
    shape[axis], along[axis] = size, size
    total = np.full(shape, 1 << (BITS - 1), np.int32)
    for tap, weight in enumerate(weights):  # a pixel past the end has the weight 0
        total += np.take(image, np.minimum(first + tap, extent - 1), axis) * weight.reshape(along)
    resized: Array = np.clip(total >> BITS, 0, 255).astype(np.uint8)
    return resized


def _weights(extent: int, size: int, kernel: Kernel) -> tuple[Array, Array]:
    """Return the first pixel of each new one [size], and the weights of those from there on [taps, size], i32."""
    scale = extent / size
    spread = max(scale, 1.0)
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - kernel.reach * spread + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + kernel.reach * spread + 0.5).astype(np.int64), extent)
    taps = np.arange((end - first).max())[:, np.newaxis]
    distance = np.abs(first + taps - centre + 0.5) * (1 / spread)
    weights = np.where((first + taps < end) & (distance < kernel.reach), kernel.weights(distance), 0.0)
    weights /= sum(weights)  # one after the other, which np.sum would not do
    scaled = weights * (1 << BITS)
    return first, np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)


def _listed(tensors: Any, what: str) -> Sequence[Any]:
    if tensors is None:
        return []
    if hasattr(tensors, "get_element_type"):
        return [tensors]
    if not isinstance(tensors, (list, tuple)) or any(not hasattr(item, "get_element_type") for item in tensors):
        raise TypeError(f"{what} are a Tensor or a list of them, not {type(tensors).__name__}: Tensor(array) makes one")
    return tensors


def _pixels(tensor: Any, what: str) -> Array:
    """Return the images of a tensor [n, height, width, 3]."""
    pixels = np.asarray(tensor.data)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise Error(f"an {what} is u8 [height, width, channels] or [n, height, width, channels], not {_form(pixels)}")
    if not pixels.size or pixels.shape[-1] not in (1, 3, 4):
        raise Error(f"an {what} has pixels with 1, 3 or 4 channels, in the last axis, not {_form(pixels)}")
    pixels = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels[..., :3]
    return pixels if pixels.ndim == 4 else pixels[np.newaxis]


def _chosen(video: Array, metadata: VideoMetadata) -> Array:
    """Return the frames that the metadata names, or all if it names none."""
    indices = [index(number) for number in metadata.frames_indices]
    if any(not 0 <= i < len(video) for i in indices) or len(indices) > len(video):
        raise Error(f"frames_indices are {indices}, and the video has {len(video)} frames")
    return video[indices] if indices else video


def _form(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"
