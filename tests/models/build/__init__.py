"""Architectures with random weights, as OpenVINO models. Each takes its sizes, so that the small models in
`data/` and the large ones that the benchmarks time come from the same code."""
