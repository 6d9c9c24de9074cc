"""What makes a model faster, and leaves its answers as they are.

May import torch, and nothing of `serving`.
"""
