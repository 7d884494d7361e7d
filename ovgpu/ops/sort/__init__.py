"""Sorting, searching and selecting."""
