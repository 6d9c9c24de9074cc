"""Pipelines, in the author's Python."""
