"""Embedding bags, segments and sparse rows."""
