"""Random number generation."""
