"""Ops that create shapes and number ranges, and ops that change shapes."""
