"""Execution of the bodies of TensorIterator, Loop and If: unrolled, repeated, or iteration by iteration."""
