"""A job's folder in a file system or an object store, and which errors of it are temporary.

May import errors alone.
"""
