"""Shapes as values, and changes of shape."""
