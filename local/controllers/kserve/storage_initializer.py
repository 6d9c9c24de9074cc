"""Downloads a model for a predictor, in place of KServe's storage initializer.

    python -m kfp_pytorch.local.controllers.kserve.storage_initializer URI FOLDER

Credentials come from the variables that KServe sets, AWS_* among them, which S3's client reads
itself, or from STORAGE_CONFIG, the JSON of an entry in the Secret `storage-config`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import fsspec

from kfp_pytorch.local.controllers.kserve.storage import SCHEMES


class DownloadError(Exception):
    """The model cannot be fetched."""


def download(uri: str, folder: Path) -> int:
    """Fetch all files under a URI. Raises DownloadError: unknown scheme, or no files."""
    scheme, _, path = uri.partition("://")
    if scheme not in SCHEMES:
        raise DownloadError(
            f"Cannot recognize storage type for {uri}; the local cluster knows {', '.join(SCHEMES)}"
        )
    files = fsspec.filesystem(scheme, **_options())
    root = uri if scheme.startswith("http") else path.rstrip("/")
    found = [root] if files.isfile(root) else files.find(root)
    if not found:
        raise DownloadError(f"Failed to fetch model. No model found in {uri}.")
    for source in found:
        inside = source[len(root) :].strip("/") or Path(source).name
        target = folder / inside
        if not target.resolve().is_relative_to(folder.resolve()):
            raise DownloadError(f"{source} would be written outside of the model's folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        files.get_file(source, str(target))
    return len(found)


def _options() -> dict[str, Any]:
    """The options of S3's client where the credentials are in the JSON of `storage-config`."""
    config = json.loads(os.environ.get("STORAGE_CONFIG") or "{}")
    config |= json.loads(os.environ.get("STORAGE_OVERRIDE_CONFIG") or "{}")
    if not config:
        anonymous = os.environ.get("awsAnonymousCredential", "").lower() == "true"  # noqa: SIM112
        return {"anon": True} if anonymous else {}
    if str(config.get("anonymous", "")).lower() == "true":
        return {"anon": True, "endpoint_url": config.get("endpoint_url")}
    return {
        "key": config.get("access_key_id"),
        "secret": config.get("secret_access_key"),
        "endpoint_url": config.get("endpoint_url"),
        "client_kwargs": {"region_name": config.get("default_region") or config.get("region")},
    }


def main(arguments: list[str]) -> int:
    """Download what the command line names; returns the exit code."""
    if len(arguments) != 2:
        print("usage: storage_initializer URI FOLDER", file=sys.stderr)
        return 2
    uri, folder = arguments
    print(f"Copying contents of {uri} to {folder}", flush=True)
    try:
        count = download(uri, Path(folder))
    except DownloadError as error:
        print(f"Storage initialization failed: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # any error of the store's client
        cause = f"{type(error).__name__}: {error}"
        print(f"Unexpected error during storage initialization: {cause}", file=sys.stderr)
        return 1
    print(f"Successfully copied {count} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
