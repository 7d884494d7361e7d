"""Data movement: gathering, scattering, slicing, joining, padding."""
