"""Forms (multipart/form-data): fields and a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ovgpu.serve.errors import invalid
from ovgpu.serve.openai.errors import FieldError

FILE = "file"
MAX_PARTS = 64


@dataclass
class Form:
    """Fields, each with its values, and the ``file``, None if there is none."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    file: bytes | None = None


def read_form(content_type: str, data: bytes | bytearray) -> Form:
    """Return the form in a body. Raises: ServeError for a body that is none; FieldError for a second file."""
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import FormParser, parse_options_header
    except ImportError:
        raise invalid("the server cannot read forms: it lacks the package python-multipart") from None

    form, parts, ended = Form(), 0, False

    def count() -> None:
        nonlocal parts
        parts += 1
        if parts > MAX_PARTS:
            raise invalid(f"the form has more than {MAX_PARTS} fields")

    def on_field(part: Any) -> None:
        count()
        form.fields.setdefault(_text(part.field_name), []).append(_text(part.value or b""))

    def on_file(part: Any) -> None:
        count()
        if part.field_name == FILE.encode():
            if form.file is not None:
                raise FieldError(FILE, "the form has two files")
            form.file = part.file_object.getvalue()
        part.close()

    def on_end() -> None:
        nonlocal ended
        ended = True

    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise invalid("the body is no form: its content type is not multipart/form-data")
    try:
        in_memory = {"MAX_MEMORY_FILE_SIZE": len(data) + 1}
        parser = FormParser("multipart/form-data", on_field, on_file, on_end, options.get(b"boundary"), None, in_memory)
        parser.write(bytes(data))
        parser.finalize()
    except FormParserError as error:
        raise invalid(f"the body is no form: {error}") from None
    if not ended:
        raise invalid("the body ends before its form does")
    return form


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise invalid("the form has a text that is not UTF-8") from None
