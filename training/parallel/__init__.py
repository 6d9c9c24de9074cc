"""How ranks work together: process groups, DDP, pipelines, precision, compilation.

May import arguments and entry.
"""
