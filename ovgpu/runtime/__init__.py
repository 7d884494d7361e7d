"""From a Program to calls on a device: binding, memory, state, profiles."""
