"""`ovgpu.genai` in openvino_genai's place, for programs that run unchanged."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "openvino_genai"
CARD = "NVIDIA"


def answer(devices: Collection[str]) -> None:
    """Let ``import openvino_genai`` import `ovgpu.genai`, whose pipelines take ``devices``, such as GPU, for cards."""
    sys.meta_path.insert(0, _Finder(frozenset(devices)))


def names_card(program: str, arguments: Sequence[str], as_module: bool) -> bool:
    """Return whether the file of a program, or one of its arguments, has the name NVIDIA."""
    if any(CARD in argument for argument in arguments):
        return True
    try:
        spec = importlib.util.find_spec(program) if as_module else None
        path = spec.origin if spec is not None else program
        return path is not None and CARD in Path(path).read_text(errors="replace")
    except (ImportError, OSError, ValueError):  # Python itself reports a program that cannot be found
        return False


class _Finder(MetaPathFinder):
    def __init__(self, devices: frozenset[str]) -> None:
        self._devices = devices

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(NAME, _Loader(self._devices)) if name == NAME else None


class _Loader(Loader):
    def __init__(self, devices: frozenset[str]) -> None:
        self._devices = devices

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` fills."""

    def exec_module(self, module: ModuleType) -> None:
        from ovgpu import genai

        cards = f", and {', '.join(sorted(self._devices))} means {CARD}" if self._devices else ""
        print(f"ovgpu: {NAME} is ovgpu.genai in this program{cards}", file=sys.stderr)
        names: Any = module
        names.__doc__, names.__all__, names.__version__ = genai.__doc__, genai.__all__, genai.get_version()

        def attribute(name: str) -> Any:
            value = getattr(genai, name)
            if name.endswith("Pipeline") and self._devices:
                value = _on_cards(value, self._devices)
            setattr(module, name, value)
            return value

        names.__getattr__ = attribute


def _on_cards(pipeline: Any, devices: frozenset[str]) -> Any:
    """Return a subclass of a pipeline that takes names of devices for those of cards."""

    def renamed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        name, dot, number = value.partition(".")
        return f"{CARD}{dot}{number}" if name in devices and (not dot or number.isdigit()) else value

    class Pipeline(pipeline):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*map(renamed, args), **{name: renamed(value) for name, value in kwargs.items()})

    Pipeline.__name__ = Pipeline.__qualname__ = pipeline.__name__
    Pipeline.__doc__ = pipeline.__doc__
    return Pipeline
