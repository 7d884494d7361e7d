"""Maximum and average pooling."""
