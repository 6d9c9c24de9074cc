"""Checks of where the job writes: a claim that several nodes can mount, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator

import urllib3

from kfp_pytorch.launcher.constants import CLAIM, EVENT, STORAGE_CLASS
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.events import event_message
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.text import some

CLAIM_MANIFEST = "manifests/pvc.yaml"
_ABOUT = "storage"
_MANY = "ReadWriteMany"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# A StorageClass does not say whether its volumes can be mounted by several nodes. These can.
_SHARED = (
    *("efs.csi.aws.com", "fsx.csi.aws.com", "file.csi.azure.com", "filestore.csi.storage.gke.io"),
    *("nfs.csi.k8s.io", "cephfs.csi.ceph.com", "csi.juicefs.com", "driver.longhorn.io"),
    *("csi.weka.io", "beegfs.csi.netapp.com", "smb.csi.k8s.io", "kubernetes.io/azure-file"),
    *("file.csi.aliyun.com", "nasplugin.csi.alibabacloud.com", "manila.csi.openstack.org"),
)
# And these cannot.
_OF_ONE_NODE = (
    *("ebs.csi.aws.com", "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "kubernetes.io/gce-pd"),
    *("disk.csi.azure.com", "kubernetes.io/azure-disk", "rancher.io/local-path"),
    *("cinder.csi.openstack.org", "dobs.csi.digitalocean.com", "rbd.csi.ceph.com"),
    *("k8s.io/minikube-hostpath", "docker.io/hostpath", "topolvm.io", "local.csi.openebs.io"),
)
_ENDPOINTS = {"s3": "https://s3.amazonaws.com", "gs": "https://storage.googleapis.com"}
_SECONDS = 5.0


def places(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """The place of `output_uri` is there, and every pod of the job can reach it."""
    place = needs.output_uri
    if not needs.trains:
        return
    if not place.on_claim:
        yield bucket(place, needs.output_endpoint)
        return
    claim = survey.get(CLAIM, place.host)
    if claim is None:
        yield from _absent(survey, place.host)
    else:
        yield _usable(survey, claim, needs)


def _usable(survey: Survey, claim: Object, needs: Needs) -> Finding:
    """Whether a claim that is there can be mounted by the pods of the job."""
    name = f"Claim {survey.namespace}/{objects.name(claim)}"
    asked, status = dig(claim, "spec", "accessModes") or [], dig(claim, "status") or {}
    modes, phase = status.get("accessModes") or asked, status.get("phase")
    if _MANY not in modes:
        words = f"{name} can be mounted by one node at a time ({some(modes)})"
        mend = (
            f"Name a claim with {_MANY}, or a bucket, as output_uri; {CLAIM_MANIFEST} makes such a "
            "claim."
        )
        if needs.num_nodes > 1:
            return error(_ABOUT, f"{words}, and the job has {needs.num_nodes} nodes.", mend)
        return warning(
            _ABOUT, f"{words}: TensorBoard and a predictor wait for the job's end.", mend
        )
    if phase == "Lost":
        mend = f"kubectl describe pvc {objects.name(claim)} -n {survey.namespace}"
        return error(_ABOUT, f"{name} has lost its volume.", mend)
    if phase == "Bound":
        return ok(_ABOUT, f"{name} is bound, with {_MANY}.")
    return _pending(survey, claim, name)


def _pending(survey: Survey, claim: Object, name: str) -> Finding:
    """A claim without a volume: it waits for its first pod, or for ever."""
    mend = f"kubectl describe pvc {objects.name(claim)} -n {survey.namespace}"
    try:
        fields = f"involvedObject.kind={CLAIM.kind},involvedObject.name={objects.name(claim)}"
        events = survey.kube.list(EVENT, fields=fields) if survey.may_read("list", EVENT) else []
        failed = [event for event in events if event.get("reason") == "ProvisioningFailed"]
        if failed:
            return error(_ABOUT, f"{name} gets no volume: {event_message(failed[-1])}", mend)
        chosen = dig(claim, "spec", "storageClassName")
        classes = survey.list(STORAGE_CLASS)
        of_it = next((each for each in classes if objects.name(each) == chosen), None)
        if chosen and of_it is None:
            there = some([objects.name(each) for each in classes]) or "none"
            words = f"{name} asks for the storage class {chosen}, which is not there"
            return error(_ABOUT, f"{words} (there: {there}).", mend)
        if of_it and of_it.get("volumeBindingMode") == "WaitForFirstConsumer":
            return _of_class(of_it, f"{name} gets its volume with its first pod")
    except Unreadable as reason:
        words = f"{name} has no volume yet; why is not known: this account may not {reason}."
        return warning(_ABOUT, words, mend)
    return warning(_ABOUT, f"{name} has no volume yet.", mend)


def _absent(survey: Survey, claim: str) -> Iterator[Finding]:
    """A claim is to be made: whether a storage class could give it a volume."""
    words = f"There is no claim {survey.namespace}/{claim}, which output_uri names."
    apply = f"kubectl apply -n {survey.namespace} -f {CLAIM_MANIFEST}"
    if claim != "kfp-pytorch":
        apply += f", with the name {claim}"
    yield error(_ABOUT, words, apply)
    try:
        classes = survey.list(STORAGE_CLASS)
    except Unreadable:
        return
    default = next((each for each in classes if _is_default(each)), None)
    shared = [objects.name(each) for each in classes if each.get("provisioner") in _SHARED]
    named = f"Give {CLAIM_MANIFEST} the storageClassName {some(shared[:1])}." if shared else ""
    if default is None:
        words = "No storage class is the default, so a claim that names none gets no volume."
        yield error("storage class", words, named or "Install one for shared volumes, such as NFS.")
    elif default.get("provisioner") not in _SHARED and named:
        yield warning("storage class", _unsure(default), named)
    else:
        yield _of_class(default, "A new claim gets a volume")


def _is_default(storage_class: Object) -> bool:
    annotations = dig(storage_class, "metadata", "annotations") or {}
    return str(annotations.get(_DEFAULT_CLASS)) == "true"


def _unsure(storage_class: Object) -> str:
    name, made_by = objects.name(storage_class), storage_class.get("provisioner")
    if made_by in _OF_ONE_NODE:
        return f"Storage class {name} ({made_by}) has no {_MANY}: one node at a time."
    return f"Whether storage class {name} ({made_by}) has {_MANY} is not known here."


def _of_class(storage_class: Object, what: str) -> Finding:
    name, made_by = objects.name(storage_class), storage_class.get("provisioner")
    if made_by in _SHARED:
        return ok("storage class", f"{what}, of class {name} ({made_by}), which has {_MANY}.")
    install = "Install a storage class for shared volumes, such as NFS, or use a bucket."
    level = error if made_by in _OF_ONE_NODE else warning
    return level("storage class", f"{what}. {_unsure(storage_class)}", install)


def bucket(place: Location, endpoint: str) -> Finding:
    """Whether a bucket's store answers here, and knows the bucket; nobody logs in."""
    server = endpoint or _ENDPOINTS[place.scheme]
    url = f"{server}/{place.host}"
    pool = urllib3.PoolManager(timeout=_SECONDS, retries=False)
    # Behind a proxy a store is asked as any other address is.
    try:
        status = pool.request("HEAD", url, redirect=False).status
    except (urllib3.exceptions.HTTPError, OSError) as problem:
        words = f"{server} does not answer: {type(problem).__name__}: {problem}"
        mend = f"Check output_endpoint, the network and its policies: curl -I {url}"
        return error("object store", words, mend)
    if status == 404:
        words = f"{server} has no bucket {place.host}."
        return error("object store", words, f"Make it, such as aws s3 mb s3://{place.host}")
    if status >= 500:
        return warning("object store", f"{server} answered {status}.", f"curl -I {url}")
    return ok(
        "object store", f"{server} answers, and has {place.host} or does not tell ({status})."
    )
