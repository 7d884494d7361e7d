"""From a Model to a Program: values, steps and segments, and the shape functions that lay them out."""
