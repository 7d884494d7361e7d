"""Convolutions: plain, grouped, transposed, binary and deformable."""
