"""What runs around the ranks: a pod's environment, torchrun, and the termination message.

May import errors alone, and no torch.
"""
