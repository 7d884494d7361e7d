"""Arguments of constructors that have several forms, as in openvino_genai."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

Form = Mapping[str, Any]
"""Names of arguments in order, with the classes that each may have."""
PATH = (str, bytes, os.PathLike)


def arguments(
    what: str, forms: Sequence[Form], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the first form that fits, by name, and the other keywords: properties of a device.

    Only a form with a device has properties. Raises: TypeError if no form fits.
    """
    for form in forms:
        named = dict(zip(form, args))
        taken = {name: value for name, value in kwargs.items() if name in form and name not in named}
        properties = {name: value for name, value in kwargs.items() if name not in taken}
        named |= taken
        fits = len(args) <= len(form) and named.keys() == form.keys() and not properties.keys() & form.keys()
        if (
            fits
            and all(isinstance(named[name], kind) for name, kind in form.items())
            and (any("device" in name for name in form) or not properties)
        ):
            return named, properties
    known = "; ".join(f"({', '.join(form)})" for form in forms)
    raise TypeError(f"{what} takes {known}, not ({', '.join([*map(repr, args), *kwargs])})")


def with_device(form: Form) -> tuple[Form, Form]:
    """Return a form without a device, and with one."""
    return form, {**form, "device": str}
