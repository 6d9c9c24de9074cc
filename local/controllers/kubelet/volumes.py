"""A pod's volumes as folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kfp_pytorch.launcher.constants import CONFIG_MAP, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.controllers.kubelet.environment import Find, expand, files
from kfp_pytorch.local.controllers.kubernetes.claims import make_folder

_KNOWN = "persistentVolumeClaim, emptyDir, secret, configMap, hostPath"
# Empty folders: a projected volume would hold a service account's token, and there is none.
_EMPTY = ("emptyDir", "projected")


class VolumeError(Exception):
    """A volume cannot be mounted (FailedMount)."""


def prepare(pod: Object, folder: Path, root: Path, find: Find) -> dict[str, Path]:
    """Make the folders of a pod's volumes; returns them by name. Raises VolumeError."""
    return {
        volume["name"]: _volume(volume, pod, folder / "volumes" / volume["name"], root, find)
        for volume in pod["spec"].get("volumes") or []
    }


def _volume(volume: Object, pod: Object, own: Path, root: Path, find: Find) -> Path:
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        own = make_folder(root, objects.namespace(pod), claim)
    elif "hostPath" in volume:
        own = Path(volume["hostPath"]["path"])
    elif "secret" in volume:
        wanted = volume["secret"]
        _write(own, volume, SECRET, wanted.get("secretName", ""), wanted, find)
    elif "configMap" in volume:
        wanted = volume["configMap"]
        _write(own, volume, CONFIG_MAP, wanted.get("name", ""), wanted, find)
    elif not any(kind in volume for kind in _EMPTY):
        kind = next((key for key in volume if key != "name"), "none")
        raise VolumeError(
            f'volume "{volume["name"]}" is of kind {kind}, which the local cluster does not know; '
            f"it knows {_KNOWN}"
        )
    own.mkdir(parents=True, exist_ok=True)
    return own


def _write(folder: Path, volume: Object, kind: Kind, name: str, wanted: Object, find: Find) -> None:
    found = find(kind, name)
    if found is None and not wanted.get("optional"):
        raise VolumeError(
            f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
            f'{kind.kind.lower()} "{name}" not found'
        )
    contents = files(found or {})
    items = wanted.get("items") or [{"key": key, "path": key} for key in contents]
    mode = wanted.get("defaultMode", 0o644)
    for item in items:
        if item["key"] not in contents:
            if wanted.get("optional"):
                continue
            raise VolumeError(
                f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
                f"references non-existent config key: {item['key']}"
            )
        target = folder / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        given = item.get("mode", mode)
        # Every program here is of one user: nobody else is to read a secret.
        given = given & 0o700 if kind == SECRET else given
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(contents[item["key"]])
        target.chmod(given)


def mounts(
    container: Object, volumes: Mapping[str, Path], variables: Mapping[str, str]
) -> dict[str, str]:
    """The folder of each mount path of a container, or the file that a `subPath` names."""
    found = {}
    for mount in container.get("volumeMounts") or []:
        sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
        place = volumes[mount["name"]] / sub_path
        if not place.exists():
            place.mkdir(parents=True)
        found[mount["mountPath"]] = str(place)
    return found
