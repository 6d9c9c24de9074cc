"""Kinds of jobs: inputs → manifest, status → state, termination messages → result.

One folder a kind. May import `inputs`, the readers of `kubernetes` and the root modules. No I/O.
"""
