"""Ray: models that map datasets, and deployments of models. It needs ``pip install ".[ray]"``.

`predictor` is for Ray Data. It uses `columns`, which converts between columns and a model's inputs and outputs, and
`runners`, which runs the rows. `replica` is for Ray Serve, `client` for its callers. `models` sends models to workers.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ovgpu._util.extras import install_command

if find_spec("ray") is None:
    raise ImportError(f"ovgpu.ray needs Ray: {install_command('ray')}")

from ovgpu.integrations.ray.models import SharedModel, share
from ovgpu.integrations.ray.predictor import Predictor

__all__ = ["Predictor", "Sequence", "SequenceLostError", "SharedModel", "deployment", "share"]

SERVE = {"deployment": "replica", "Sequence": "client", "SequenceLostError": "client"}


def __getattr__(name: str) -> Any:
    """Return a name that needs Ray Serve, which takes a second to import."""
    if name in SERVE:
        return getattr(import_module(f"{__name__}.{SERVE[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
