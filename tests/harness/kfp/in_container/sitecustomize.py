"""Puts the folders in which KFP keeps a step's artifacts below the container's own folder."""

import os

ROOT = os.environ.get("HARNESS_CONTAINER")

if ROOT and os.environ.get("_KFP_RUNTIME") == "true":
    from kfp.dsl.types import artifact_types

    for scheme in ("GCS", "MINIO", "S3"):
        name = f"_{scheme}_LOCAL_MOUNT_PREFIX"
        setattr(artifact_types, name, ROOT + getattr(artifact_types, name))
