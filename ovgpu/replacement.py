"""Files that take their place when they are complete."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self


@dataclass
class Replacement:
    """A temporary file that replaces ``path`` on leaving, once it is ``complete``, and else disappears. OSError if it
    cannot be written."""

    path: Path
    complete: bool = False
    file: IO[bytes] = field(init=False)

    def __enter__(self) -> Self:
        # Not by `tempfile`, whose files are private: to open them to others one would have to change the umask, of all
        # threads, to learn it.
        self.file = (self.path.parent / f".{self.path.name}.{os.urandom(4).hex()}").open("xb")
        return self

    def __exit__(self, *error: object) -> None:
        temporary = Path(self.file.name)
        try:
            self.file.close()  # writes what is left
            if self.complete:
                temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)
