"""Promotes a canary or takes it back, in either mode. Done already is success."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kfp_pytorch.launcher.constants import KNATIVE_REVISION
from kfp_pytorch.launcher.kserve.awaited import Awaited, find
from kfp_pytorch.launcher.kserve.canary import spec, state
from kfp_pytorch.launcher.kserve.canary.awaited import AwaitedCanary
from kfp_pytorch.launcher.kserve.canary.changing import NotTheRevision, RolloutFailed, Service
from kfp_pytorch.launcher.kserve.canary.inputs import PROMOTE
from kfp_pytorch.launcher.kserve.deploy import DeployFailed
from kfp_pytorch.launcher.kserve.rollout import created_revision, mode_of
from kfp_pytorch.launcher.kserve.wait import Waiter
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper

PROMOTED, ROLLED_BACK, NOTHING = "promoted", "rolled back", "nothing to do"


@dataclass(frozen=True)
class Outcome:
    """What was done, and the hash of the revision that gets all of the traffic now."""

    did: str
    revision: str


@dataclass(frozen=True)
class Rolling:
    """One promotion or rollback."""

    service: Service
    stopper: Stopper

    def run(self) -> Outcome:
        """Does it.

        Raises NotTheRevision: the canary is another revision. Raises RolloutFailed: the service is
        not there, others write it all the time, or the new revision does not serve.
        """
        found = self.service.read()
        promote = self.service.inputs.action == PROMOTE
        if mode_of(found) == "Knative":
            return self._promote_knative(found) if promote else self._rollback_knative(found)
        return self._promote_standard(found) if promote else self._rollback_standard(found)

    # Standard mode.

    def _promote_standard(self, found: Object) -> Outcome:
        canary, stable = _canary_of(found), _stable_of(found)
        wanted = self.service.inputs.revision or canary or stable
        if wanted not in (canary, stable) or not wanted:
            raise self._other(canary or stable)
        if wanted == stable:
            self._wait_until(self._awaited(Awaited, stable))
            if wanted != canary:
                return self._nothing("the revision gets all of the traffic already", stable)
            # An earlier attempt ended between its two writes.
            self._remove(stable)
            return Outcome(PROMOTED, stable)
        self._wait_for_canary(wanted)
        self._left("may have the canary's model as the stable one, and the canary still")
        changed = self.service.change(partial(self._promoted, wanted))
        log(f"revision {wanted} is the stable one now; waiting until it serves")
        self._wait_until(self._awaited(Awaited, _stable_of(changed)))
        self._remove(wanted)
        return Outcome(PROMOTED, wanted)

    def _wait_for_canary(self, wanted: str) -> None:
        try:
            self._wait_until(self._awaited(AwaitedCanary, wanted))
        except RolloutFailed:
            # It may be gone because another step has promoted it.
            if _stable_of(self.service.read()) != wanted:
                raise

    def _promoted(self, wanted: str, found: Object) -> Object:
        if _stable_of(found) == wanted:
            return found
        if _canary_of(found) != wanted:
            raise self._other(_canary_of(found))
        return spec.promoted(found)

    def _rollback_standard(self, found: Object) -> Outcome:
        canary, stable = _canary_of(found), _stable_of(found)
        wanted = self.service.inputs.revision
        if not canary:
            why = "there is no canary"
            if wanted and wanted == stable:
                why = "the revision is the stable one: deploy another model to replace it"
            return self._nothing(why, stable)
        if wanted and wanted != canary:
            return self._nothing(f"the canary is another revision, {canary}, and is left", stable)
        self._remove(canary)
        if canary == stable:
            return self._nothing("a promotion had made the canary the stable revision", stable)
        return Outcome(ROLLED_BACK, stable)

    def _remove(self, revision: str) -> None:
        """Removes the canary if it is this revision, and waits until it is gone."""

        def without(found: Object) -> Object:
            return spec.removed(found) if _canary_of(found) == revision else found

        self._left("may have the canary still, which gets no traffic")
        self.service.change(without)
        self.service.wait(self._removal_waits_for)

    def _removal_waits_for(self) -> str:
        found = self.service.read()
        if spec.find(found):
            # Somebody has deployed the next canary, whose pods take the place of this one's.
            return ""
        return state.removal_waits_for(found, self.service.canary_deployment())

    # Knative mode.

    def _promote_knative(self, found: Object) -> Outcome:
        was_split, newest = state.is_split(found), _stable_of(found)
        self._check(newest)
        awaited = self._awaited(Awaited, newest)
        self._wait_until(awaited)
        self._left("may give its newest revision all of the traffic")
        self.service.change(self._without_share)
        if not was_split:
            return self._nothing("the revision gets all of the traffic already", newest)
        self._wait_until(awaited)
        return Outcome(PROMOTED, newest)

    def _without_share(self, found: Object) -> Object:
        self._check(_stable_of(found))
        return state.with_share(found, None)

    def _rollback_knative(self, found: Object) -> Outcome:
        newest, wanted = _stable_of(found), self.service.inputs.revision
        if wanted and wanted != newest:
            return self._nothing(f"the newest revision is another, {newest}, and is left", newest)
        if not state.is_split(found) or self._is_alone(found):
            return self._nothing("there is no canary: it gets all of the traffic", newest)
        self._left("may give its newest revision no traffic any more")
        self.service.change(self._with_no_share)
        self.service.wait(lambda: state.rollback_waits_for(self.service.read()))
        return Outcome(ROLLED_BACK, self._hash_of(state.stable_revision(self.service.read())))

    def _is_alone(self, found: Object) -> bool:
        """Whether no older revision is there, as beside the first one.

        Until KServe takes up a canary, its status is that of the revision before.
        """
        if state.stable_revision(found):
            return False
        created = created_revision(found)
        return not created or self._hash_of(created) == _stable_of(found)

    def _with_no_share(self, found: Object) -> Object:
        wanted, newest = self.service.inputs.revision, _stable_of(found)
        if wanted and wanted != newest:
            raise self._other(newest)
        return state.with_share(found, 0)

    def _hash_of(self, name: str) -> str:
        """The hash of a Knative Revision; empty where it has none."""
        revision = find(self.service.kube, KNATIVE_REVISION, name) if name else None
        return spec.revision_of({"annotations": dig(revision, "metadata", "annotations")})

    # Both.

    def _awaited(self, kind: type[Awaited], revision: str) -> Awaited:
        inputs, found = self.service.inputs, self.service.read()
        return kind(
            service_name=inputs.service_name,
            uid=str(found["metadata"]["uid"]),
            spec_hash=revision,
            timeout=inputs.timeout,
        )

    def _wait_until(self, awaited: Awaited) -> None:
        """Waits until a revision serves. What does not is not promoted, nor left half promoted."""
        try:
            Waiter(self.service.kube, awaited, self.service.timing).run()
        except DeployFailed as error:
            raise RolloutFailed(error.message, error.short) from error

    def _check(self, newest: str) -> None:
        if not newest or self.service.inputs.revision not in ("", newest):
            raise self._other(newest)

    def _other(self, found: str) -> NotTheRevision:
        wanted = self.service.inputs.revision
        if not wanted:
            return NotTheRevision(
                f"{self.service.title} was not deployed by kserve_deploy: it has no revision of "
                "its in the annotations of spec.predictor. It was left as it is."
            )
        return NotTheRevision(
            f"{self.service.title} has no canary of revision {wanted}, the one that was deployed "
            f"and checked: what is there is {found or 'none'}. Somebody else has deployed "
            "meanwhile. It was left as it is: deploy and check again."
        )

    def _nothing(self, why: str, revision: str) -> Outcome:
        log(f"nothing to do: {why}")
        return Outcome(NOTHING, revision)

    def _left(self, words: str) -> None:
        self.stopper.set_left_in_place(f"{self.service.title} {words}")


def _canary_of(service: Object) -> str:
    """The revision of the canary in Standard mode; empty where there is none."""
    return spec.revision_of(dig(spec.find(service), "predictor"))


def _stable_of(service: Object) -> str:
    """The revision of `spec.predictor`: the stable one, or in Knative mode the newest."""
    return spec.revision_of(dig(service, "spec", "predictor"))
