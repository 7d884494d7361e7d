"""Keras 3 with its backend openvino, which names the CPU: a network with convolutions and one with an LSTM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["keras==3.15.1", "scipy"]  # its backend imports scipy
NAMES = "CPU"


def prepare(folder: Path) -> None:
    """Write two models with random weights."""
    os.environ["KERAS_BACKEND"] = "openvino"
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.DepthwiseConv2D(3, activation="swish")(x)
    x = layers.GlobalAveragePooling2D()(x)
    keras.Model(image, layers.Dense(5, activation="softmax")(x)).save(folder / "convolutions.keras")
    words = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(words)
    x = layers.LSTM(16)(x)
    keras.Model(words, layers.Dense(3)(layers.LayerNormalization()(x))).save(folder / "words.keras")


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the predictions, with a last batch that is smaller than the others."""
    os.environ["KERAS_BACKEND"] = "openvino"
    import keras

    random = np.random.RandomState(0)
    images = random.standard_normal((10, 32, 32, 3)).astype(np.float32)
    words = random.randint(0, 50, (10, 12)).astype(np.int32)
    return {
        name: np.asarray(keras.saving.load_model(folder / f"{name}.keras").predict(x, batch_size=4, verbose=0))
        for name, x in (("convolutions", images), ("words", words))
    }
