"""Object detection: priors, proposals, pooling of regions, non-maximum suppression."""
