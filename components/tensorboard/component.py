"""Opens TensorBoard on a run's logs before training writes them."""

# ruff: noqa: B006, D417 - kfp reads the defaults, and describes outputs from "Returns"

from typing import Any, NamedTuple

from kfp.dsl import Artifact, Output

from kfp_pytorch.components.caching import uncached
from kfp_pytorch.components.embedding import launcher_component


@uncached
@launcher_component
def tensorboard(
    mlpipeline_ui_metadata: Output[Artifact],
    output_uri: str = "pvc://kfp-pytorch",
    key: str = "",
    image: str = "",
    output_secret: str = "",
    namespace: str = "",
    labels: dict[str, Any] = {},
) -> NamedTuple("Outputs", shown=str):  # type: ignore[valid-type]
    """Opens TensorBoard on the logs of all jobs below output_uri/key, before they are written.

    Writes what the viewer of a multi-user KFP reads, and creates a Tensorboard object where the
    cluster has that kind, it is allowed, and it does no harm. It says which, and never fails the
    run for either.

    Args:
        output_uri: Where jobs keep their folders, as in pytorch_job.
        key: The folder below it, as in pytorch_job.
        image: An image with TensorBoard for the KFP viewer; empty for this project's training
            image. For s3:// and gs:// it needs s3fs or gcsfs too.
        output_secret: The Secret with the bucket's credentials, as in pytorch_job.
        namespace: The namespace of the Tensorboard object; empty for the step's own.
        labels: Labels of the Tensorboard object and its pod, such as those of a PodDefault that
            gives it a bucket's credentials.

    Returns:
        mlpipeline_ui_metadata: What the KFP UI's Visualization tab reads.
        shown: What was made, in words.
    """
    inputs = dict(locals())
    from kfp_pytorch.launcher import run_step

    return (run_step("tensorboard", **inputs),)
