"""Reader and writer of OpenVINO IR files."""

from __future__ import annotations

from ovgpu.ir._constants import as_bytes, check_files
from ovgpu.ir._files import TOKENIZERS, is_onnx, is_other_format, is_xml_text, model_file
from ovgpu.ir.read import read_model
from ovgpu.ir.write import save_model, serialize

__all__ = [
    "TOKENIZERS",
    "as_bytes",
    "check_files",
    "is_onnx",
    "is_other_format",
    "is_xml_text",
    "model_file",
    "read_model",
    "save_model",
    "serialize",
]
