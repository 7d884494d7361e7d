"""Inputs and results of models, variables, loops and branches."""
