"""Writes what a successful step returns: artifacts, curves, report.

May import `waiting.evidence`, `jobs`, `inputs`, the results of `diagnosis` and what is below them.
"""
