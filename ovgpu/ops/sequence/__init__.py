"""Recurrent cells and sequences, and connectionist temporal classification (CTC)."""
