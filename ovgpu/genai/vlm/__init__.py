"""Texts about images by language models."""
