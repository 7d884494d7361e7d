"""Servers and their clients for tests and benchmarks."""
