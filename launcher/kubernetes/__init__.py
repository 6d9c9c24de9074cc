"""The Kubernetes API: transport, credentials, typed errors, streams, readers of objects.

May import the root modules only.
"""
