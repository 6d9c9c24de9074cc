"""The objects in memory: create, update, patch, delete, watch, and garbage collection.

`api.Api` is what controllers and the HTTP server use. May import the validation, not `http`.
"""
