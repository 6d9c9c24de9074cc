"""Reads and checks pipeline packages (compiled pipelines).

Which pipeline is named, its parameters, its constants, its shape.

May import kfp, and the readers of the launcher's inputs.
"""
