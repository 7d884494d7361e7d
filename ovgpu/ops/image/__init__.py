"""Images: interpolation, sampling by grids, colour formats."""
