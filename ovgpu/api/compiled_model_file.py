"""Files of compiled models, which `CompiledModel.export_model` writes, and which are the entries of CACHE_DIR.

A file is an uncompressed ZIP archive:

    model.bin     the constants, aligned to 64 bytes; an entry of CACHE_DIR refers to the model's own .bin file instead
    model.xml     the model as it was given to `compile_model`, before the passes; encrypted if the program asks for it
    ovgpu.json    version of ovgpu, device, properties, and the reference to the .bin file
    *.cubin       machine code of the kernels that the compiled model has launched, on a card

Whoever can write such a file can run code on the card that reads it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import file_digest
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from ovgpu.errors import Error, ModelError
from ovgpu.ir import as_bytes, read_model, serialize
from ovgpu.model import Model
from ovgpu.types.mapped import map_file
from ovgpu.version import OWN

XML, WEIGHTS, HEADER, KERNELS = "model.xml", "model.bin", "ovgpu.json", ".cubin"
ALIGNMENT_BYTES = 64
COPIED_BYTES = 1 << 20  # at a time
# Sizes of parts of a ZIP archive.
LOCAL_HEADER_BYTES, LENGTHS_OFFSET, EXTRA_HEADER_BYTES, ZIP64_BYTES = 30, 26, 4, 20
PADDING_ID = 0x6F76  # of the extra field that aligns the constants

Array = np.ndarray[Any, Any]
Cipher = Callable[[bytes], bytes]
"""A function of CACHE_ENCRYPTION_CALLBACKS."""


@dataclass(frozen=True)
class Reference:
    """A .bin file: its absolute path, size in bytes, time of modification in ns, and SHA-256 digest."""

    path: str
    size: int
    modified: int
    digest: str

    @staticmethod
    def to(path: Path) -> Reference:
        """Return a reference to a file. Raise OSError if it cannot be read."""
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        status = path.stat()
        return Reference(str(path.resolve()), status.st_size, status.st_mtime_ns, digest)

    def is_current(self) -> bool:
        """Return whether the file has its former contents. It is read only if its time of modification differs."""
        try:
            status = Path(self.path).stat()
            same_time = status.st_mtime_ns == self.modified
            return status.st_size == self.size and (same_time or Reference.to(Path(self.path)).digest == self.digest)
        except OSError:
            return False


@dataclass(frozen=True)
class Exported:
    """Contents of a file: the model, the properties it was compiled with, and kernels by file name."""

    model: Model
    properties: Mapping[str, str]
    kernels: Mapping[str, bytes]


def write(
    stream: IO[bytes],
    device: str,
    properties: Mapping[str, str],
    model: Model,
    kernels: Mapping[str, bytes] | None = None,
    read_from: tuple[Path, Path] | None = None,
    encrypt: Cipher | None = None,
) -> None:
    """Write a compiled model to a binary stream, from its current position on.

    ``read_from`` are the .xml and the .bin file that the model was read from: then the file refers to the latter.
    ``encrypt`` returns the bytes to store as model.xml. Raises: OSError if a file cannot be read or written.
    """
    header: dict[str, Any] = {"ovgpu": OWN, "device": device, "properties": dict(properties)}
    header["encrypted"] = encrypt is not None
    with ExitStack() as stack:
        if read_from is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ovgpu-")))
            xml, weights = folder / XML, folder / WEIGHTS
            serialize(model, xml)
        else:
            xml, weights = read_from
            header["weights"] = asdict(Reference.to(weights)) if weights.exists() else None
        archive = stack.enter_context(ZipFile(stream, "w", ZIP_STORED))
        if read_from is None:
            with archive.open(_aligned(WEIGHTS), "w", force_zip64=True) as target, weights.open("rb") as source:
                copyfileobj(source, target, COPIED_BYTES)
        archive.writestr(ZipInfo(XML), xml.read_bytes() if encrypt is None else _passed(encrypt, xml.read_bytes()))
        archive.writestr(ZipInfo(HEADER), json.dumps(header, indent=1))
        for name, code in (kernels or {}).items():
            archive.writestr(ZipInfo(name), code)


def read(data: Any, device: str, decrypt: Cipher | None = None) -> Exported:
    """Return the contents of a file, which is given as bytes, an array, a memoryview or a tensor.

    The model's constants are views of ``data``, or of the .bin file that the file refers to. ``decrypt`` reverses
    ``encrypt`` of `write`.

    Raises: ModelError if it is no such file, is damaged, or was written by another version of ovgpu or for another
    device, or if the .bin file has changed.
    """
    buffer = as_bytes(data)
    try:
        with ZipFile(_View(buffer)) as archive:
            files = {info.filename: _contents(buffer, info) for info in archive.infolist()}
        header = json.loads(files[HEADER].tobytes())
        version, made_for, properties = header["ovgpu"], header["device"], dict(header["properties"])
    except KeyError as e:
        raise ModelError(f"this is not a compiled model of ovgpu: it has no {e}") from None
    except (BadZipFile, ValueError, TypeError, struct.error, NotImplementedError, OSError) as e:
        raise ModelError(f"this is not a compiled model of ovgpu, or it is damaged: {e}") from None
    if version != OWN:
        raise ModelError(f"the compiled model was exported by ovgpu {version}, and this is {OWN}: export it again")
    if made_for != device:
        raise ModelError(f"the model was compiled for {made_for}, not for {device}")
    if XML not in files:
        raise ModelError(f"the compiled model is damaged: it has no {XML}")
    weights, xml = _weights(files, header), files[XML].tobytes()
    if header.get("encrypted"):
        if decrypt is None:
            raise ModelError("the compiled model is encrypted: give CACHE_ENCRYPTION_CALLBACKS")
        xml = _passed(decrypt, xml)
    try:
        model = read_model(xml, weights)
    except Error as e:
        raise ModelError(f"the compiled model is damaged: {e}") from None
    kernels = {name: contents.tobytes() for name, contents in files.items() if name.endswith(KERNELS)}
    return Exported(model, properties, kernels)


def _weights(files: Mapping[str, Array], header: Mapping[str, Any]) -> Any:
    """Return the constants: a part of the file, the path of the .bin file, or None for a model without constants."""
    if WEIGHTS in files:
        return files[WEIGHTS]
    if header.get("weights") is None:
        return None
    try:
        reference = Reference(**header["weights"])
    except TypeError as e:
        raise ModelError(f"the compiled model is damaged: {e}") from None
    if not reference.is_current():
        raise ModelError(f"{Path(reference.path).name} has changed since the model was compiled")
    return Path(reference.path)


def read_file(path: Path, device: str, decrypt: Cipher | None = None) -> Exported:
    """Return the contents of the file at a path; see `read`. Raise OSError if it cannot be read."""
    return read(map_file(path), device, decrypt)


def _passed(cipher: Cipher, text: bytes) -> bytes:
    """Return the result of a function of CACHE_ENCRYPTION_CALLBACKS for bytes. Raises: ModelError if it fails."""
    try:
        return bytes(cipher(text))
    except Exception as e:
        raise ModelError(f"a function of CACHE_ENCRYPTION_CALLBACKS raised {type(e).__name__}: {e}") from e


def rewind(stream: Any) -> None:
    """Move to the beginning of a file object that can seek. Other objects are left alone."""
    if hasattr(stream, "seekable") and stream.seekable():
        stream.seek(0)


# ---- ZIP archives


def _aligned(name: str) -> ZipInfo:
    """Return a description of the archive's first file that makes its contents begin at `ALIGNMENT_BYTES`."""
    info = ZipInfo(name)
    padding = -(LOCAL_HEADER_BYTES + len(name) + EXTRA_HEADER_BYTES + ZIP64_BYTES) % ALIGNMENT_BYTES
    info.extra = struct.pack("<HH", PADDING_ID, padding) + bytes(padding)
    return info


def _contents(buffer: Array, info: ZipInfo) -> Array:
    """Return the contents of a file of the archive as a view. Raise BadZipFile if they are damaged."""
    start = info.header_offset
    name, extra = struct.unpack_from("<HH", buffer.data, start + LENGTHS_OFFSET)
    begin = start + LOCAL_HEADER_BYTES + name + extra
    contents = buffer[begin : begin + info.file_size]
    if info.compress_type != ZIP_STORED or contents.size != info.file_size or zlib.crc32(contents.data) != info.CRC:
        raise BadZipFile(f"the contents of {info.filename} do not match their checksum")
    return contents


class _View(RawIOBase):
    """Bytes in memory as a file for reading, without a copy."""

    def __init__(self, data: Array) -> None:
        self._data = data
        self._at = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self._at = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._data.size}[whence] + offset
        if self._at < 0:
            raise ValueError("an offset lies before the beginning")
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._data.size if size is None or size < 0 else self._at + size
        data = self._data[self._at : end].tobytes()
        self._at += len(data)
        return data
