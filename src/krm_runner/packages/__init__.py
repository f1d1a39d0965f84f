"""Package folders and resource lists: reading one into the other and back, for `krm-runner eval`."""
