"""`kfp-pytorch logs`: the logs of a run's steps, and of its jobs' ranks.

`source.py` says what a run has, whose logs `local.py` reads from files and `cluster.py` from an API
server; `choice.py` finds what a person names, and `show.py` prints it. May import runs.
"""

from kfp_pytorch.cli.logs.command import logs

__all__ = ["logs"]
