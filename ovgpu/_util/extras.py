"""Commands that install ovgpu's optional packages, for error messages."""

from __future__ import annotations

WHERE = "in ovgpu's source folder"  # the package is in no registry


def install_command(extra: str) -> str:
    """Return the command for an extra of pyproject.toml, and where to run it."""
    return f'pip install ".[{extra}]" {WHERE}'
