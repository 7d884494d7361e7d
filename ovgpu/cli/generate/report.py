"""Figures of a generation, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from ovgpu.cli._print import table
from ovgpu.cli.generate.recorder import Recorder
from ovgpu.runtime.printing import bytes_text, counted

REASONS = {
    "end": "the model ended the text",
    "length": "ended after {0.limit} tokens (--max-new-tokens)",
    "context": "ended because the context of {0.context} tokens is full",
    "interrupted": "interrupted",
}


@dataclass(frozen=True)
class Report:
    """Figures of a generation. ``limit`` and ``context`` limit its tokens. ``states`` has the bytes of each state."""

    record: Recorder
    model: str
    device: str
    sampling: str
    limit: int
    context: int | None
    compile_seconds: float
    total_seconds: float
    states: list[int]

    @property
    def _prompt(self) -> dict[str, Any]:
        """Figures of the prompt, empty if it was not finished."""
        for seconds in self.record.seconds[:1]:
            return {
                "prompt_tokens": self.record.prompt,
                "first_token_seconds": seconds,
                "prompt_tokens_per_second": self.record.prompt / seconds,
            }
        return {}

    @property
    def _later(self) -> dict[str, Any]:
        """Figures of the tokens after the first one, empty if there are none."""
        seconds = self.record.seconds[1:]
        if not seconds:
            return {}
        median = float(np.median(seconds))
        return {
            "later_tokens": len(seconds),
            "later_seconds": sum(seconds),
            "tokens_per_second": len(seconds) / sum(seconds),
            "median_token_seconds": median,
            "median_tokens_per_second": 1 / median,
        }

    def as_json(self) -> dict[str, Any]:
        """Return the figures; times are in seconds."""
        return {
            "model": self.model,
            "device": self.device,
            "sampling": self.sampling,
            **self._prompt,
            **self._later,
            "new_tokens": len(self.record.tokens),
            "ended_by": self.record.reason,
            "compile_seconds": self.compile_seconds,
            "total_seconds": self.total_seconds,
            "states": len(self.states),
            "state_bytes": sum(self.states),
            "token_seconds": self.record.seconds,
            "tokens": self.record.tokens,
            "text": self.record.text,
        }

    def print(self, out: Console) -> None:
        """Print the figures."""
        out.print()
        rows = list(self._rows())
        if rows:
            out.print(table("", ("", "tokens", "ms", "tokens/s", "median"), rows, right=(1, 2, 3, 4)))
        for line in (
            f"{counted(len(self.record.tokens), 'new token')} in {self.total_seconds:.2f} s on {self.device}, "
            f"after {self.compile_seconds:.2f} s to read and compile the model",
            f"{counted(len(self.states), 'state')} of {bytes_text(sum(self.states))}; {self.sampling}; "
            f"{REASONS[self.record.reason].format(self)}",
        ):
            out.print(line, markup=False, soft_wrap=True)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        prompt, later = self._prompt, self._later
        if prompt:
            yield (
                "until the first token",
                self.record.prompt,
                f"{1e3 * prompt['first_token_seconds']:.1f}",
                f"{prompt['prompt_tokens_per_second']:.1f}",
                "",
            )
        if later:
            yield (
                "after the first token",
                later["later_tokens"],
                f"{1e3 * later['later_seconds']:.1f}",
                f"{later['tokens_per_second']:.1f}",
                f"{1e3 * later['median_token_seconds']:.2f} ms, {later['median_tokens_per_second']:.1f} tokens/s",
            )
