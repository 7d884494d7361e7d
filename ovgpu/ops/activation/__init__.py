"""Activation functions: Relu, Gelu, Softmax and the like."""
