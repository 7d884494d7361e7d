"""Execution of the bodies of TensorIterator, Loop and If: unrolled, replayed, or iteration by iteration."""
