"""OpenVINO IR files: reading them as models, and writing models as them."""

from __future__ import annotations

from ovgpu.ir.read import read_model

__all__ = ["read_model"]
