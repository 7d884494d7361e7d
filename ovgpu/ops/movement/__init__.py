"""Data-movement ops: gather, scatter, slice, concatenate, split, pad."""
