"""Normalization: by mean and variance, by a norm, across channels."""
