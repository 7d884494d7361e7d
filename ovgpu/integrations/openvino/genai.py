"""`ovgpu.genai` in openvino_genai's place, for programs that run unchanged."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Collection, Sequence
from functools import cached_property, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "openvino_genai"
CARD = "NVIDIA"


def answer(devices: Collection[str] = ()) -> None:
    """Let ``import openvino_genai`` import `ovgpu.genai`, and print a line that says so to stderr.

    ``devices`` are names of openvino's devices, of AUTO, GPU and CPU, that mean a card in its pipelines. If there are
    any, and no card can be used, the import is that of openvino_genai itself, where it is installed.
    """
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
        if name != NAME:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        if self._devices and any(other.find_spec(name, path, target) for other in others) and self._lacks_card:
            return None
        return ModuleSpec(NAME, _Loader(self._devices))

    @cached_property
    def _lacks_card(self) -> bool:
        from ovgpu.compile.devices import resolve
        from ovgpu.errors import DeviceError

        try:
            resolve(CARD)
        except DeviceError as e:
            _say(f"{NAME} stays itself in this program: {e}")
            return True
        return False


class _Loader(Loader):
    def __init__(self, devices: frozenset[str]) -> None:
        self._devices = devices

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` fills."""

    def exec_module(self, module: ModuleType) -> None:
        from ovgpu import genai

        cards = sorted(self._devices)
        meanings = [f"{', '.join(cards)} mean{'s' * (len(cards) == 1)} {CARD}"] * bool(cards)
        meanings += ["CPU is NumPy"] * ("CPU" not in cards)
        _say(f"{NAME} is ovgpu.genai in this program, where {', and '.join(meanings)}")
        names: Any = module
        names.__doc__, names.__all__, names.__version__ = genai.__doc__, genai.__all__, genai.get_version()
        renames = self._devices - {"AUTO"}  # AUTO takes a card in ovgpu, too

        def attribute(name: str) -> Any:
            if name.startswith("__"):  # such as __path__, by which submodules would be imported a second time
                raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
            value = getattr(genai, name)
            if renames and name.endswith("Pipeline"):
                value = _on_cards(value, renames)
            elif renames and name == "draft_model":
                value = _with_cards(value, renames)
            setattr(module, name, value)
            return value

        names.__getattr__ = attribute
        names.__dir__ = lambda: sorted({*vars(module), *genai.__all__})


def _say(text: str) -> None:
    print(f"ovgpu: {text}", file=sys.stderr)


def _on_cards(pipeline: Any, devices: Collection[str]) -> Any:
    """Return a subclass of a pipeline that takes names of devices for those of cards."""

    class Pipeline(pipeline):  # type: ignore[misc]
        __init__ = _with_cards(pipeline.__init__, devices, 2)

    Pipeline.__name__ = Pipeline.__qualname__ = pipeline.__name__
    Pipeline.__module__ = pipeline.__module__
    Pipeline.__doc__ = pipeline.__doc__
    return Pipeline


def _with_cards(function: Any, devices: Collection[str], first: int = 1) -> Any:
    """Return a function that takes names of devices for those of cards, in arguments from the ``first`` on. The one
    before that is a model's path."""
    # A whole entry of a list such as AUTO:GPU.1,CPU. An entry after a minus is excluded, and keeps its name.
    names = re.compile(rf"(^|[:,]\s*)(?:{'|'.join(sorted(devices))})(?=\.\d|[,(]|$)")

    def renamed(value: Any) -> Any:
        return names.sub(rf"\g<1>{CARD}", value) if isinstance(value, str) else value

    @wraps(function)
    def with_cards(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = renamed(kwargs["device"])
        return function(*args[:first], *map(renamed, args[first:]), **kwargs)

    return with_cards
