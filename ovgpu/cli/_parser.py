"""Parser of a command's arguments: options are never abbreviated, and unknown ones suggest the nearest."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ovgpu._util.nearest import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """Parser whose options have to be written in full; the namespace gets the arguments as ``argv``.

    argparse reads ``-max_irate 10`` as ``-m ax_irate`` if there is an option ``-m`` and no ``-max_irate``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        given = list(args or [])
        for argument in given:
            option = argument.partition("=")[0]
            if argument == "--":
                break
            if re.match(r"--?[A-Za-z]", option) and option not in self._option_string_actions:
                self.error(f"there is no option {option}{did_you_mean(option, self._option_string_actions)}")
        parsed, rest = super().parse_known_args(given, namespace)
        parsed.argv = given
        return parsed, rest
