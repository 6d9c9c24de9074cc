"""Errors of commands as JSON."""

from __future__ import annotations

# In the `meta` of click's context: whether an error is to be told as JSON too.
ERROR_AS_JSON = "kfp_pytorch.cli.error_as_json"
