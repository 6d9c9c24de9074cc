"""Runs a pipeline from this terminal: its cluster, its folder, its progress, its summary.

May import `packages`, and `kfp_pytorch.local`.
"""
