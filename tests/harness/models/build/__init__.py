"""Architectures with random weights, as OpenVINO models. Sizes are arguments, so that the small models in `data/`
and the large ones of the benchmarks come from the same code."""
