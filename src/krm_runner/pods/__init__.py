"""Function pods and what they need in the cluster."""
