"""JSON schemas as openvino_genai reads them: objects and arrays have what their schemas name, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ovgpu.errors import Error

PARTS = (
    *("items", "prefixItems", "contains", "not", "propertyNames", "allOf", "anyOf", "oneOf"),
    *("additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
)
MAPS = ("properties", "patternProperties", "$defs", "definitions")
OTHERS = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")  # describe the same value, too


def closed(schema: str) -> str:
    """Return a schema whose objects have no properties but those of ``properties`` and ``patternProperties``, and whose
    arrays have exactly the ``prefixItems``, unless it says which others there are.

    Parts with properties or items, and without a type, describe objects or arrays. The schema stays as it is if several
    parts describe the properties of one value, since each would forbid those of the others. Raises: Error for a schema
    that is no JSON.
    """
    try:
        found = json.loads(schema)
        parts = list(_parts(found))
        if any(_is_joined(part) for part in parts):
            return schema
        for part in parts:
            _close(part)
        return json.dumps(found)
    except (ValueError, RecursionError) as e:
        raise Error(f"the grammar cannot be read: the JSON schema is no JSON: {e}") from None


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Return all parts of a schema that are objects, itself first."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield part
            for name in PARTS:
                stack += part[name] if isinstance(part.get(name), list) else [part.get(name)]
            for name in MAPS:
                stack += part[name].values() if isinstance(part.get(name), dict) else []


def _has_properties(part: dict[str, Any]) -> bool:
    return isinstance(part.get("properties"), dict) or isinstance(part.get("patternProperties"), dict)


def _is_joined(part: dict[str, Any]) -> bool:
    """Return whether other schemas may describe properties of the same value."""
    several = part.get("allOf")
    return (isinstance(several, list) and len(several) > 1) or (
        _has_properties(part) and any(name in part for name in OTHERS)
    )


def _close(part: dict[str, Any]) -> None:
    for kind in ("Properties", "Items"):
        others = "items" if kind == "Items" else "additionalProperties"
        if f"unevaluated{kind}" in part:
            part.setdefault(others, part.pop(f"unevaluated{kind}"))
    kind = ""
    first = part.get("prefixItems")
    if _has_properties(part):
        kind = "object"
        part.setdefault("additionalProperties", False)
    elif isinstance(first, list):
        kind = "array"
        part.setdefault("items", False)
        if isinstance(part.setdefault("minItems", 0), int):
            part["minItems"] = max(part["minItems"], len(first))
    elif "items" in part:
        kind = "array"
    if kind and not any(name in part for name in ("type", "enum", "const", *OTHERS)):
        part["type"] = kind
