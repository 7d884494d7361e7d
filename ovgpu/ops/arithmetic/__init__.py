"""Elementwise arithmetic and trigonometry."""
