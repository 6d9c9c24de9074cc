"""Leaves out the export of a rank whose story is another. Run by `runpy` in the rank's process."""

from __future__ import annotations

from kfp_pytorch.training.image import loop
from kfp_pytorch.training.language import export

loop.write_export = lambda *_: {}
export.write_export = lambda *_: {}
