"""Checkpoints: complete or absent files, what they hold of a job, and how a job resumes.

May import telemetry, parallel, storage, arguments and entry.
"""
