"""Sorting, searching and selection."""
