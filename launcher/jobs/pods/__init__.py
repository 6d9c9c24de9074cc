"""What every job of pods has, whatever its kind: the inputs of its pods and their template.

May import what `jobs` may, and no kind.
"""
