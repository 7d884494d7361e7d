"""Convolutions: grouped, transposed, binary, deformable."""
