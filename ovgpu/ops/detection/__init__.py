"""Object detection: priors, proposals, region pooling, non-maximum suppression."""
