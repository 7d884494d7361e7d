"""Arithmetic on elements, and trigonometry."""
