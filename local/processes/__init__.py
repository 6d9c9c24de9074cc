"""Processes on this machine: a guard that ends every descendant, and locks of folders.

`guard` runs as a script of its own and imports the standard library alone. Nothing here imports
another package of this project.
"""
