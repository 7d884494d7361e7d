"""Recurrent cells and sequences, CTC."""
