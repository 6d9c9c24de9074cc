"""Reads and checks packages: which pipeline is named, its parameters, its constants, its shape.

May import kfp, and the readers of the launcher's inputs.
"""
