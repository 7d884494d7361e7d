"""Settings of a model in a file beside its versions: ``ovgpu.toml``, or Triton's ``config.pbtxt``."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgpu.batching.sequence_batcher import MAX_SEQUENCES
from ovgpu.errors import Error
from ovgpu.serve.warm_up import Sample

log = logging.getLogger(__name__)

TOML, TRITON = "ovgpu.toml", "config.pbtxt"
MOST = 1 << 31
# Numbers that a file may have: names of options, with the smallest and the largest value.
NUMBERS: dict[str, tuple[type, float, float]] = {
    "max_batch_size": (int, 1, MOST),
    "max_sequences": (int, 1, MAX_SEQUENCES),
    "requests": (int, 1, MOST),
    "max_queue": (int, 1, MOST),
    "max_wait_ms": (float, 0, MOST),
    "idle_seconds": (float, 1e-3, MOST),
}
ENGINE = (
    *("max_batch_size", "max_sequences", "requests", "max_wait_ms"),
    *("batching", "device", "properties", "task", "scheduler", "pipeline"),
)
KINDS = {
    **{"batching": bool, "device": str, "properties": dict},
    **{"task": str, "scheduler": dict, "pipeline": dict},
}


@dataclass(frozen=True)
class Policy:
    """Versions that are served: the ``latest`` ones, those of ``numbers``, or all if both are None.

    ``default`` is the version of requests that name none; None is the newest one.
    """

    latest: int | None = 1
    numbers: frozenset[int] | None = None
    default: int | None = None

    def chosen(self, numbers: Iterable[int]) -> list[int]:
        """Return the versions to be served of those that exist, newest first."""
        found = sorted(numbers, reverse=True)
        if self.numbers is not None:
            return [number for number in found if number in self.numbers]
        return found[: self.latest]


@dataclass(frozen=True)
class Settings:
    """Options of one model, which replace those of the server; None is the server's.

    ``engine`` has fields of `EngineOptions`. ``warm_up`` has inferences that run before the model is served; with None
    and with samples, those that the server chooses run as well. ``inputs`` and ``outputs`` have (name, data type) of
    those that the model must have.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    max_queue: int | None = None
    idle_seconds: float | None = None
    warm_up: tuple[Sample, ...] | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    model_file: str = ""
    """Name of the model's file, if it has to have one."""

    def check(self, file: str, engine: Any) -> None:
        """Raise Error if a model has another file, or no such inputs and outputs."""
        if self.model_file not in ("", file):
            raise Error(f"{TRITON}: default_model_filename is '{self.model_file}', and the model's file is '{file}'")
        for what, wanted, own in (("input", self.inputs, engine.inputs), ("output", self.outputs, engine.outputs)):
            for name, datatype in wanted:
                port = next((port for port in own if name in port.names), None)
                if port is None:
                    raise Error(f"{TRITON}: the model has no {what} '{name}'")
                if datatype not in ("", port.datatype):
                    raise Error(f"{TRITON}: {what} '{name}' of the model is {port.datatype}, not {datatype}")


class SettingsReader:
    """Settings of many models. A file is read again only if it has changed."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[list[Any], Settings, Policy, str]] = {}

    def read(self, folder: Path, name: str) -> tuple[Settings, Policy, str]:
        """Return the settings of a model from the file in its folder, and an error text if they are malformed.

        Nothing is raised, whatever is wrong with a file: other models of the repository are served.
        """
        try:
            signature = [_signature(folder / kind) for kind in (TOML, TRITON)]
        except OSError as error:
            return Settings(), Policy(), f"the settings cannot be read: {error.strerror}"
        if folder not in self._read or self._read[folder][0] != signature:
            try:
                self._read[folder] = signature, *read(folder, name), ""
            except Error as error:
                self._read[folder] = signature, Settings(), Policy(), str(error)
            except Exception:
                log.exception("the settings of model '%s' cannot be read", name)
                self._read[folder] = signature, Settings(), Policy(), "the settings cannot be read: see the log"
        return self._read[folder][1:]


def _signature(file: Path) -> tuple[int, int, int] | None:
    """Return the size, the time of the last change and the inode of a file, or None if there is no file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def read(folder: Path, name: str) -> tuple[Settings, Policy]:
    """Return the settings of a model from the file in its folder, if there is one.

    Raises: Error that names the file and the field for anything that is malformed or not supported.
    """
    files = [folder / file for file in (TOML, TRITON) if (folder / file).is_file()]
    if not files:
        return Settings(), Policy()
    if len(files) > 1:
        raise Error(f"model '{name}' has both {TOML} and {TRITON}")
    try:
        text = files[0].read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise Error(f"{files[0].name} cannot be read: {error}") from None
    if files[0].name == TOML:
        return _toml(text)
    from ovgpu.serve import triton_config  # which few repositories need

    return triton_config.parse(text, name, folder)


def settings_of(values: Mapping[str, Any], file: str, **fields: Any) -> Settings:
    """Return settings from options by name. Raise Error for a number out of its range."""
    for name, (kind, least, most) in NUMBERS.items():
        value = values.get(name)
        if value is not None and (type(value) not in (int, kind) or not least <= value <= most):
            raise Error(f"{file}: {name} is {value!r}, not a number from {least:g} to {most:g}")
    engine = {name: values[name] for name in ENGINE if name in values}
    return Settings(engine, values.get("max_queue"), values.get("idle_seconds"), **fields)


def _toml(text: str) -> tuple[Settings, Policy]:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Error(f"{TOML}: {error}") from None
    except RecursionError:
        raise Error(f"{TOML}: its values are nested too deeply") from None
    policy = _policy(values.pop("versions", 1), values.pop("default_version", None))
    warm_up = values.pop("warm_up", None)
    for name, value in values.items():
        if name not in (*NUMBERS, *ENGINE):
            raise Error(f"{TOML}: there is no setting {name}")
        kind = KINDS.get(name)
        if kind is not None and not isinstance(value, kind):
            raise Error(f"{TOML}: {name} is {value!r}")
    return settings_of(values, TOML, warm_up=None if warm_up is None else _samples(warm_up)), policy


def _policy(versions: Any, default: Any) -> Policy:
    if default is not None and not _is_number(default):
        raise Error(f"{TOML}: default_version is {default!r}, not the number of a version")
    if versions == "all":
        return Policy(None, None, default)
    if _is_number(versions):
        return Policy(versions, None, default)
    if isinstance(versions, list) and versions and all(map(_is_number, versions)):
        return Policy(None, frozenset(versions), default)
    raise Error(f'{TOML}: versions is {versions!r}, not "all", a number of the latest ones, or a list of versions')


def _samples(tables: Any) -> tuple[Sample, ...]:
    """Return samples of zeros from tables with the shapes of inputs by name."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise Error(f"{TOML}: warm_up has no tables with the shapes of inputs")
    for table in tables:
        for name, shape in table.items():
            if not isinstance(shape, list) or not all(map(_is_number, shape)):
                raise Error(f"{TOML}: warm_up of input '{name}' is {shape!r}, not a shape")
    zeros = [{name: (tuple(shape), "zeros") for name, shape in table.items()} for table in tables]
    return tuple([Sample("warm_up", inputs) for inputs in zeros])


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < MOST
