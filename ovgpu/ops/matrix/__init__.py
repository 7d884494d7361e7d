"""Products of matrices, Einsum, Inverse."""
