"""The `kfp-pytorch` command."""
