"""From a Model to something that runs: program, memory, bindings, state."""
