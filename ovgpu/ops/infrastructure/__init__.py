"""Ops of the graph's structure: inputs and results of models, constants, variables, loops and branches."""
