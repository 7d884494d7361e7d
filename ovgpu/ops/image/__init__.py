"""Image ops: interpolation, grid sampling, colour conversion."""
