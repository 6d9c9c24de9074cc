"""Keeps the ConfigMap of a job's files: made before the job, owned by it, deleted with it."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import CONFIG_MAP, STEP_ID_LABEL
from kfp_pytorch.launcher.errors import NotOurs, StepError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.kubernetes.api_errors import AlreadyExists, ApiError, Conflict, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, name
from kfp_pytorch.launcher.runtime.printing import log


@dataclass(frozen=True)
class SourceFiles:
    """The ConfigMap of a job's files on the cluster; nothing where there are no files.

    Attributes:
        content: The ConfigMap; empty for none.
        owner: Its owner until the job is there: the job's own owner, or None.
    """

    kube: Kube
    kind: JobKind
    content: Object
    owner: Object | None = None

    def make(self, job: Object) -> None:
        """Makes the ConfigMap before its job is created.

        One that an earlier attempt made stays where its job is there; where that is gone, it is
        about to be deleted too, and made anew. Raises NotOurs: another's has its name. Raises
        ApiError: it cannot be made.
        """
        if not self.content:
            return
        while True:
            try:
                self.kube.create(CONFIG_MAP, self._owned_by(self.owner))
                return
            except AlreadyExists:
                found = self._find()
            if found is None:
                continue
            if not self._is_ours(found):
                raise NotOurs(
                    f"There is a ConfigMap {name(found)!r} in namespace {self.kube.namespace!r} "
                    "that is not this step's. Delete it if nobody needs it, or give this step "
                    "another `name`."
                )
            if self._stays(found, job):
                return
            self._delete(found)

    def hand_over(self, job: Object) -> None:
        """Makes the job the owner of the ConfigMap, so that it is deleted with the job."""
        if not self.content:
            return
        owner = {
            "apiVersion": self.kind.resource.api_version,
            "kind": self.kind.resource.kind,
            "name": name(job),
            "uid": job["metadata"]["uid"],
            "controller": False,
            "blockOwnerDeletion": False,
        }
        try:
            found = self._find()
            if found and _owners(found) != [owner["uid"]]:
                found["metadata"]["ownerReferences"] = [owner]
                self.kube.replace(CONFIG_MAP, found)
        except ApiError as error:
            # The job runs all the same.
            log(
                f"warning: the ConfigMap {name(self.content)!r} is not deleted with the job; do it "
                f"by hand: {error.short}"
            )

    def drop(self) -> None:
        """Deletes the ConfigMap of a job that was not made; no error here changes the result."""
        if not self.content:
            return
        try:
            found = self._find()
            if found and self._is_ours(found):
                self._delete(found)
        except StepError as error:
            log(f"the ConfigMap {name(self.content)} could not be deleted: {error.short}")

    def _owned_by(self, owner: Object | None) -> Object:
        references = {"ownerReferences": [owner]} if owner else {}
        return {**self.content, "metadata": {**self.content["metadata"], **references}}

    def _find(self) -> Object | None:
        try:
            return self.kube.get(CONFIG_MAP, name(self.content))
        except NotFound:
            return None

    def _is_ours(self, found: Object) -> bool:
        def step(of: Object) -> str:
            return str((of["metadata"].get("labels") or {}).get(STEP_ID_LABEL, ""))

        return step(found) == step(self.content)

    def _stays(self, found: Object, job: Object) -> bool:
        """Whether what owns a ConfigMap is there, so that it is not collected."""
        if found["metadata"].get("deletionTimestamp"):
            return False
        owners = [
            each["uid"]
            for each in found["metadata"].get("ownerReferences") or []
            if each.get("kind") == self.kind.resource.kind
        ]
        if not owners:
            return True
        try:
            return bool(self.kube.get(self.kind.resource, name(job))["metadata"]["uid"] in owners)
        except NotFound:
            return False

    def _delete(self, found: Object) -> None:
        try:
            self.kube.delete(
                CONFIG_MAP, name(found), found["metadata"]["uid"], propagation="Background"
            )
        except (NotFound, Conflict):
            return


def _owners(found: Object) -> list[str]:
    return [each["uid"] for each in found["metadata"].get("ownerReferences") or []]
