"""Models that recipes, benchmarks and estimates share: in PyTorch here, in Keras in `keras`."""
