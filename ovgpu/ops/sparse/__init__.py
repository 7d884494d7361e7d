"""Embeddings and segments."""
