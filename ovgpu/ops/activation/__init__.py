"""Activation functions: Relu, Gelu, Softmax and others."""
