"""The step `tensorboard`: views of the logs that can be opened before training writes them.

The artifact `mlpipeline_ui_metadata` opens the viewer of the KFP UI, on multi-user KFP. A
`Tensorboard` object is the one of Kubeflow's dashboard, where the cluster has that kind. The
artifact `how_to_open` has the commands for every other cluster. None fails the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.inputs import k8s, storage
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.api_errors import AlreadyExists, Forbidden, KindAbsent
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.outputs.tensorboard import guide, ui_metadata, viewer_pod
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.identity import Identity, identify, whoami
from kfp_pytorch.launcher.runtime.printing import log

# The controller names the port of its Service after the object: `http-<name>`.
_PORT_PREFIX = "http-"
_SHARED = ("ReadWriteMany", "ReadOnlyMany")
# Not worth waiting for as long as a training job is, but for as long as an API server starts.
_POLICY = RetryPolicy(unavailability_budget=45.0, first_contact=45.0, connect=5.0, read=10.0)


def _image(name: str, value: Any) -> str:
    return k8s.image(name, value) or constants.TRAINING_IMAGE


@dataclass(frozen=True)
class View:
    """The checked inputs of `tensorboard`: what is to be shown."""

    output_uri: Location = declare(storage.location, constants.DEFAULT_OUTPUT_URI)
    key: str = declare(storage.relative, "")
    image: str = declare(_image, "")
    output_secret: str = declare(k8s.dns_subdomain, "")
    namespace: str = declare(k8s.dns_label, "")
    labels: dict[str, str] = declare(k8s.label_map, {})

    @property
    def logs(self) -> Location:
        """The folder of the logs."""
        return self.output_uri.under(self.key)


def run(mlpipeline_ui_metadata: Artifact, how_to_open: Artifact, **inputs: Any) -> str:
    """Open the views of a folder of logs.

    `how_to_open`: gets the ways to open TensorBoard on this cluster, in Markdown. Returns what was
    made, as text. Raises InputError: if an input cannot work; nothing else fails this step.
    """
    view = parse(View, "tensorboard", inputs)
    pod = viewer_pod(view.logs, view.output_secret)
    write(mlpipeline_ui_metadata, json.dumps(ui_metadata(view.logs, view.image, pod)))
    namespace, dashboard = _dashboard(view, mlpipeline_ui_metadata.uri)
    write(how_to_open, guide(view.logs, view.image, pod, namespace, dashboard))
    lines = [
        f"TensorBoard of {view.logs.uri}: on multi-user KFP it opens in the Visualization tab of "
        "the artifact mlpipeline_ui_metadata; the artifact how_to_open has all other ways.",
        dashboard,
    ]
    for line in lines:
        log(line)
    return " ".join(lines)


def _dashboard(view: View, artifact_uri: str) -> tuple[str, str]:
    """Create the Tensorboard object where that helps; return its namespace and the result."""
    namespace = view.namespace
    try:
        kube = connect(view.namespace, policy=_POLICY)
        namespace = kube.namespace
        return namespace, _reason_to_skip(kube, view) or _create(kube, view, artifact_uri)
    except KindAbsent:
        return namespace, "No Tensorboard object: this cluster does not have that kind."
    except Forbidden as error:
        return namespace, f"No Tensorboard object: {error.short}"
    except StepError as error:
        return namespace, (
            f"No Tensorboard object, for the cluster did not answer as it should: {error.short}"
        )


def _reason_to_skip(kube: Kube, view: View) -> str:
    """Return why an object would do harm or show nothing; empty where it would not.

    Its pod starts at once. A claim that one node can hold would then keep the training pods off
    all other nodes; a bucket needs credentials that the object has no field for.
    """
    if view.logs.scheme == "s3" and not view.labels:
        return (
            "No Tensorboard object: it could not read the bucket. Make a PodDefault that gives "
            "its credentials, and pass that PodDefault's label as labels."
        )
    if not view.logs.on_claim:
        return ""
    claim = kube.get(constants.CLAIM, view.logs.host)
    modes = objects.dig(claim, "spec", "accessModes") or []
    if any(mode in _SHARED for mode in modes):
        return ""
    return (
        f"No Tensorboard object: claim {view.logs.host!r} can be held by one node only "
        f"({', '.join(map(str, modes))}), and training needs it."
    )


def _create(kube: Kube, view: View, artifact_uri: str) -> str:
    step = whoami(kube)
    identity = identify("tensorboard", artifact_uri, _PORT_PREFIX, step.run_id, view.logs.uri)
    owner = step.owner if step.namespace == kube.namespace else None
    where = f"{kube.namespace}/{identity.name}"
    try:
        kube.create(constants.TENSORBOARD, _tensorboard_object(view, identity, owner))
    except AlreadyExists:
        if not identity.owns(kube.get(constants.TENSORBOARD, identity.name)):
            return f"No Tensorboard object: {where} belongs to another step."
    return f"Tensorboard object {where}: it opens from the dashboard's TensorBoards page."


def _tensorboard_object(view: View, identity: Identity, owner: Object | None) -> Object:
    """Build the Tensorboard object. Its controller copies the labels to the pod."""
    metadata: Object = {
        "name": identity.name,
        "labels": {**view.labels, **identity.labels},
        "annotations": dict(identity.annotations),
    }
    if owner:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": constants.TENSORBOARD.api_version,
        "kind": constants.TENSORBOARD.kind,
        "metadata": metadata,
        "spec": {"logspath": view.logs.uri},
    }
