"""The metadata of a job of pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, merged
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs


def metadata(
    inputs: PodInputs,
    demanded: Demands,
    job_name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the job's `metadata`; the launcher's own labels and annotations come last."""
    made: dict[str, Any] = {
        "name": job_name,
        "labels": {**merged("labels", inputs.labels, demanded.job_labels), **labels},
        "annotations": {
            **merged("annotations", inputs.annotations, demanded.job_annotations),
            **annotations,
        },
    }
    if inputs.namespace:
        made["namespace"] = inputs.namespace
    if owner:
        made["ownerReferences"] = [dict(owner)]
    return made
