"""Capacity policy of KV caches and other variables that grow by rows.

The buffer of such a variable has capacity for more rows than it holds. New rows are appended in place until it is full.
Then the variable moves to a buffer for the next power of two of rows. Compiled programs (`lowering.placement`) and
values that users set (`runtime.state`) follow the same policy.
"""

from __future__ import annotations

MIN_CAPACITY_ELEMENTS = 1024


def cache_capacity(needed: int, current: int, row_elements: int) -> int:
    """Return a KV cache's capacity in elements: ``current`` if ``needed`` fits, else the next power of two of rows."""
    return (
        current
        if needed <= current
        else (row_elements * (1 << (-(-max(needed, MIN_CAPACITY_ELEMENTS) // row_elements) - 1).bit_length()))
    )
