"""What the views of TensorBoard are made of: KFP's viewer, and a guide for a person. No I/O."""

from __future__ import annotations

import json
import shlex

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.kubernetes.objects import Object

VOLUME = "logs"
_USER = 1000
_PORT = 6006


def viewer_pod(logs: Location, secret: str) -> Object:
    """Build the pod of KFP's viewer; its controller fills in image and arguments.

    `env` as command runs them whatever the image's own entry point is. `secret`: the Secret with
    the bucket's credentials; empty for none.
    """
    container: Object = {
        "command": ["env"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Object = {
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if logs.on_claim:
        claim = {"claimName": logs.host}
        spec["volumes"] = [{"name": VOLUME, "persistentVolumeClaim": claim}]
        mount = {"name": VOLUME, "mountPath": constants.OUTPUT_MOUNT, "readOnly": True}
        container["volumeMounts"] = [mount]
    elif secret and logs.scheme == "gs":
        key, at = constants.GCS_CREDENTIALS_PATH, constants.CREDENTIALS_MOUNT
        container["env"] = [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": key}]
        mount = {"name": "credentials", "mountPath": at, "readOnly": True}
        container["volumeMounts"] = [mount]
        spec["volumes"] = [{"name": "credentials", "secret": {"secretName": secret}}]
    elif secret:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    return {"spec": spec}


def ui_metadata(logs: Location, image: str, pod: Object) -> Object:
    """Build what the KFP UI reads: frontend/src/lib/OutputArtifactLoader.ts.

    `pod`: the viewer's pod, as `viewer_pod` builds it.
    """
    source = f"volume://{VOLUME}/{logs.path}" if logs.on_claim else logs.uri
    shown = {"type": "tensorboard", "source": source, "image": image, "pod_template_spec": pod}
    return {"outputs": [shown]}


def guide(logs: Location, image: str, pod: Object, namespace: str, dashboard: str) -> str:
    """Write how a person opens TensorBoard, in Markdown.

    `pod`: the viewer's pod, as `viewer_pod` builds it. `namespace`: the step's namespace; empty
    where it is not known.
    """
    sections = [
        f"# TensorBoard of `{logs.uri}`",
        "## In the KFP UI\n\nOn multi-user KFP: select the artifact `mlpipeline_ui_metadata` of "
        "this step, then its tab *Visualization*. Single-user KFP cannot open it (a blank page, "
        "then an error): use one of the other ways.",
        f"## In Kubeflow's dashboard\n\n{dashboard}",
        "## With kubectl\n\nIn the cluster, with the logs "
        + ("on their claim" if logs.on_claim else "in their bucket")
        + f":\n\n{_commands(logs, image, pod, namespace)}\n\nThen open http://localhost:{_PORT}.",
    ]
    if not logs.on_claim:
        sections.append(
            "## On your own machine\n\nWith the bucket's credentials in your environment:\n\n"
            f"{_shell('pip install tensorboard s3fs gcsfs', f'tensorboard --logdir {logs.uri}')}"
        )
    return "\n\n".join(sections) + "\n"


def _commands(logs: Location, image: str, pod: Object, namespace: str) -> str:
    where = f" -n {namespace}" if namespace else ""
    folder = f"{constants.OUTPUT_MOUNT}/{logs.path}" if logs.on_claim else logs.uri
    (viewer,) = pod["spec"]["containers"]
    container = viewer | {
        "name": "tensorboard",
        "image": image,
        "command": ["tensorboard", "--logdir", folder, "--port", str(_PORT)],
    }
    overrides = json.dumps({"spec": pod["spec"] | {"containers": [container]}})
    return _shell(
        f"kubectl run tensorboard{where} --restart=Never --image={image} "
        f"--overrides={shlex.quote(overrides)}",
        f"kubectl wait{where} --for=condition=Ready pod/tensorboard --timeout=5m",
        f"kubectl port-forward{where} pod/tensorboard {_PORT}",
        f"kubectl delete{where} pod tensorboard",
    )


def _shell(*lines: str) -> str:
    return "\n".join(["```sh", *lines, "```"])
