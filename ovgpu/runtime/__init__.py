"""Execution of a Program as calls on a device: binding, memory, state, profiles."""
