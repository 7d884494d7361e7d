"""Lowering from a Model to a Program: values, steps and segments, and the shape functions that compute sizes."""
