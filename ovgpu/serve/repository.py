"""Files of models: one model, or a repository of folders ``name/version/model.xml``, as for other servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path

from ovgpu.errors import ModelError
from ovgpu.serve.openai.files import speech_file, text_files
from ovgpu.serve.settings import Settings, SettingsReader

FORMATS = (".xml", ".onnx", ".pdmodel", ".pb", ".tflite")  # all but the first are read by openvino

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class ModelFiles:
    """Files of one version of a model. The signature has (name, bytes, time of the last change) of each file.

    ``settings`` are those of the model, of whatever version.
    """

    name: str
    version: int
    path: Path
    signature: Signature
    settings: Settings = field(default_factory=Settings)

    def digest(self) -> str:
        """Return the SHA-256 of the contents of all files. Raise OSError if one cannot be read."""
        total = sha256()
        for name, _, _ in self.signature:
            with (self.path.parent / name).open("rb") as file:
                total.update(file_digest(file, "sha256").digest())
        return total.hexdigest()


@dataclass(frozen=True)
class ServedFiles:
    """Versions of a model that are to be served, in the order in which they are loaded: the default one first, if its
    number is set, then the newest.

    If the settings of the model are malformed, there are only its newest version and the ``error``.
    """

    versions: tuple[ModelFiles, ...]
    default: int | None = None
    error: str = ""

    @property
    def numbers(self) -> list[int]:
        """The numbers of the versions."""
        return [files.version for files in self.versions]


class Repository:
    """Models under a path: a model's file, its folder, the folder of its numbered versions, or a folder of such."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self._settings = path, SettingsReader()
        if not path.exists():
            raise ModelError(f"there is no file or folder {path}")
        self._single = path.is_file() or _model_file(path) is not None
        self._is_model = self._single or any(_files("", number, path / str(number)) for number in _versions(path))
        if name and not self._is_model:
            raise ModelError(f"{path} is a repository: its folders name the models")
        self._name = name or (
            path.stem
            if path.is_file() and path.stem != "openvino_model"
            else path.resolve().parent.name
            if path.is_file()
            else path.resolve().name
        )

    def scan(self) -> dict[str, ServedFiles]:
        """Return the versions to be served of each model that exists now, by name."""
        if self._single:
            versions = {1: files} if (files := _files(self._name, 1, self.path)) else {}
            found = {self._name: self._served(versions, self.path if self.path.is_dir() else self.path.parent)}
        else:
            found = {}
            for name, folder in self._model_folders().items():
                all_files = {number: _files(name, number, folder / str(number)) for number in _versions(folder)}
                versions = {number: files for number, files in all_files.items() if files is not None}
                found[name] = self._served(versions, folder)
        return {name: served for name, served in found.items() if served.versions}

    def version(self, name: str, number: str) -> ModelFiles | None:
        """Return a version of a model, also one that is not the newest; None if it does not exist."""
        if self._single:
            found = self.scan().get(name)
            return found.versions[0] if found and number == "1" else None
        folder = self._model_folders().get(name)
        if folder is None or number not in map(str, _versions(folder)):
            return None
        files = _files(name, int(number), folder / number)
        return None if files is None else replace(files, settings=self._settings.read(folder, name)[0])

    def _model_folders(self) -> dict[str, Path]:
        """Return the folders of models with versions, by name."""
        if self._is_model:
            return {self._name: self.path}
        return {folder.name: folder for folder in sorted(_folders(self.path))}

    def _served(self, versions: dict[int, ModelFiles], folder: Path) -> ServedFiles:
        """Return the versions to be served of those that exist, as the settings in the model's folder say."""
        if not versions:
            return ServedFiles(())
        newest = versions[max(versions)]
        settings, policy, error = self._settings.read(folder, newest.name)
        numbers = policy.chosen(versions)
        if not numbers:
            error = error or "none of the versions that the settings name exists"
        elif policy.default not in (None, *numbers):
            error = f"default_version is {policy.default}, which is not served"
        if error:
            return ServedFiles((newest,), error=error)
        numbers.sort(key=lambda number: number != policy.default)  # it must be the first one that is loaded
        return ServedFiles(tuple([replace(versions[number], settings=settings) for number in numbers]), policy.default)


def _folders(path: Path) -> Iterator[Path]:
    for folder in path.iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            yield folder


def _versions(folder: Path) -> Iterator[int]:
    for version in _folders(folder):
        if version.name.isdecimal() and str(int(version.name)) == version.name:
            yield int(version.name)


def _model_file(folder: Path) -> Path | None:
    """Return the file of a model in its folder: the only one of a format, or ``model.xml`` if there are several."""
    for suffix in FORMATS:
        files = sorted(folder.glob(f"*{suffix}"))
        named = [file for file in files if file.stem in ("model", "openvino_model")]
        if len(files) == 1 or named:
            return (named or files)[0]
    return speech_file(folder)


def _files(name: str, version: int, path: Path) -> ModelFiles | None:
    """Return the files of a version, or None if there are none, or if they are deleted meanwhile."""
    try:
        file = _model_file(path) if path.is_dir() else path
        if file is None:
            return None
        parts = [file, *([weights] if (weights := file.with_suffix(".bin")).exists() else [])]
        parts += text_files(file)
        signature = tuple([(part.name, part.stat().st_size, part.stat().st_mtime_ns) for part in parts])
    except FileNotFoundError:
        return None
    return ModelFiles(name, version, file, signature)
