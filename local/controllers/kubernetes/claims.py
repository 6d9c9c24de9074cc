"""Claims: each is a folder under the cluster's root, which outlives the cluster."""

from __future__ import annotations

from pathlib import Path

from kfp_pytorch.launcher.constants import CLAIM
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import NAMESPACE
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, ApiError

_SIZE = "10Gi"


def claim_folder(root: Path, namespace: str, claim: str) -> Path:
    """The folder of a claim's files."""
    return root / "claims" / namespace / claim


def make_folder(root: Path, namespace: str, claim: str) -> Path:
    """The folder of a claim's files, made unless it is there."""
    folder = claim_folder(root, namespace, claim)
    if folder.is_symlink() and not folder.exists():
        # A person gave a folder as this claim, and has removed it.
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def restore(api: Api, root: Path) -> None:
    """Create the claims whose folders an earlier cluster left behind."""
    for folder in sorted((root / "claims").glob("*/*/")):
        ensure(api, folder.parent.name, folder.name)


def ensure(api: Api, namespace: str, name: str) -> None:
    """Create a claim, and its namespace, unless they are there."""
    if api.find(NAMESPACE, "", namespace) is None:
        api.create(NAMESPACE, {"metadata": {"name": namespace}})
    if api.find(CLAIM, namespace, name) is None:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": _SIZE}}}
        meta = {"name": name, "namespace": namespace}
        api.create(CLAIM, {"metadata": meta, "spec": spec})


async def run(api: Api, root: Path) -> None:
    """Give every claim its folder, until cancelled; the files stay when the claim is deleted."""
    async for change, claim in api.watch(CLAIM):
        if change != DELETED and (claim.get("status") or {}).get("phase") != "Bound":
            _bind(api, root, claim)


def _bind(api: Api, root: Path, claim: Object) -> None:
    namespace, name = objects.namespace(claim), objects.name(claim)
    make_folder(root, namespace, name)

    def bound(fresh: Object) -> None:
        spec = fresh.get("spec") or {}
        requested = (spec.get("resources") or {}).get("requests") or {}
        fresh["status"] = {
            "phase": "Bound",
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "capacity": {"storage": str(requested.get("storage") or _SIZE)},
        }

    try:
        api.mutate(CLAIM, namespace, name, bound, "status")
    except ApiError as error:
        if error.code != 404:
            raise
