"""Layout: the names of a tensor's axes, with the interface of openvino.Layout."""

from __future__ import annotations

import re

_ALIASES = dict(B="N", BATCH="N", CHANNEL="C", CHANNELS="C", DEPTH="D", HEIGHT="H", WIDTH="W")
_SCALAR = "**SCALAR**"


class Layout:
    """Names of a tensor's axes: `Layout("NCHW")`, `Layout("[batch, ..., channels]")`.

    "?" is an unnamed axis, "..." any number of them. A layout equals a str of the same layout.

    Raises: RuntimeError for a text that is no layout, TypeError for an argument that is no str.
    """

    __slots__ = ("_last_names", "_names", "_scalar")
    _names: tuple[str, ...]
    _last_names: tuple[str, ...] | None
    """The names after "...", None if the layout has no "..."."""

    def __init__(self, layout_str: str = "") -> None:
        if not isinstance(layout_str, str):
            raise TypeError(f"a Layout is made of a str, got {type(layout_str).__name__}")
        text = layout_str.strip()
        self._scalar = text == _SCALAR
        if self._scalar:
            self._names, self._last_names = (), None
            return
        fields = _fields(text)
        split = fields.index("...") if "..." in fields else None
        self._names = tuple(map(_canonical, fields[:split]))
        self._last_names = None if split is None else tuple(map(_canonical, fields[split + 1 :]))
        named = [name for name in (*self._names, *(self._last_names or ())) if name != "?"]
        for name in named:
            if named.count(name) > 1:
                raise RuntimeError(f"Dimension ({name}) is defined multiple times in layout {text}")

    @staticmethod
    def scalar() -> Layout:
        """Return the layout of a scalar."""
        return Layout(_SCALAR)

    @property
    def empty(self) -> bool:
        """True for `Layout()`, which names no axes."""
        return not self._names and self._last_names == ()

    def has_name(self, dimension_name: str) -> bool:
        """Return whether an axis has this name."""
        name = _alias(dimension_name)
        return name != "?" and name in (*self._names, *(self._last_names or ()))

    def get_index_by_name(self, dimension_name: str) -> int:
        """Return the axis of that name, negative (from the end) if it follows "...". RuntimeError if there is none."""
        if not self.has_name(dimension_name):
            raise RuntimeError(f"{dimension_name} dimension index is not defined in layout {self}")
        name = _alias(dimension_name)
        if name in self._names:
            return self._names.index(name)
        last = self._last_names or ()
        return last.index(name) - len(last)

    def names(self, rank: int) -> list[str]:
        """Return one name per axis of a tensor of that rank, "?" for unnamed axes.

        RuntimeError if the layout does not fit the rank.
        """
        known = len(self._names) + len(self._last_names or ())
        if rank < known or (rank > known and self._last_names is None):
            raise RuntimeError(f"layout {self} does not fit rank {rank}")
        return [*self._names, *["?"] * (rank - known), *(self._last_names or ())]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = Layout(other)
        elif type(other).__name__ == "Layout":  # openvino's
            return str(self) == str(other)
        return self.to_string() == other.to_string() if isinstance(other, Layout) else NotImplemented

    def to_string(self) -> str:
        """Return the text of the layout, such as [N,C,H,W]."""
        if self._scalar:
            return _SCALAR
        names = self._names if self._last_names is None else (*self._names, "...", *self._last_names)
        return f"[{','.join(names)}]"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Layout: {self}>"


def _fields(text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):
        return [field.strip() for field in text[1:-1].split(",")]
    head, dots, last = text.partition("...") if text else ("", "...", "")
    return [*head, *([dots] if dots else []), *last]


def _alias(name: str) -> str:
    return _ALIASES.get(name.upper(), name.upper())


def _canonical(name: str) -> str:
    if name != "?" and not re.fullmatch(r"_*[A-Za-z0-9][A-Za-z0-9_]*", name):
        raise RuntimeError(f"Layout name is invalid ({name}): letters, digits and _, at least one not _")
    return _alias(name)
