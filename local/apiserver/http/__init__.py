"""The HTTP requests and answers that the official client and kubectl take for Kubernetes.

May import the store and the validation. `server` is the server, `app` its routes.
"""
