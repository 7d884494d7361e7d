"""Entry point of ``python -m ovgpu``."""

from __future__ import annotations

import sys

from ovgpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
