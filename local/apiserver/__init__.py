"""A Kubernetes API over objects in memory, for one process on this machine."""
