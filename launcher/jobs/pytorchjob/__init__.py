"""The PyTorchJob of the Training Operator v1: its inputs, its manifest and its state.

May import what `jobs` may.
"""
