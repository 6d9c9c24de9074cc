"""A stand-in for a cluster of one node, on this machine."""
