"""Leaves out the export of a rank whose story is another. Run by `runpy` in the rank's process."""

from __future__ import annotations

from kfp_pytorch.training import language_export, train

train.write_export = lambda *_: {}
language_export.write_export = lambda *_: {}
