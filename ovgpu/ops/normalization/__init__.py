"""Normalization by mean and variance, by a norm, and across channels."""
