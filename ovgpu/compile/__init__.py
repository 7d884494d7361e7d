"""Compilation: from a model, a device and its settings to all that requests need."""
