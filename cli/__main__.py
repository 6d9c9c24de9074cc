"""Runs the command as `python -m kfp_pytorch.cli`."""

from kfp_pytorch.cli import main

if __name__ == "__main__":
    main(prog_name="kfp-pytorch")
