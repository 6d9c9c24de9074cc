"""What runs in the training pods.

`python -m kfp_pytorch.training` is the container's entry point. It starts torchrun's agent, which
starts one process a rank; each runs `kfp_pytorch.training.rank`.
"""
