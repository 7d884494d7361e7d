"""Models that tests and benchmarks write, or make with other libraries (`build`), and ways to run them."""
