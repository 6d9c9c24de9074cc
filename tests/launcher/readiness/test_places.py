"""Where the job writes: claims without a volume, storage classes, buckets."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from harness.objects import ready
from harness.ports import free_port

from kfp_pytorch.launcher.constants import CLAIM, EVENT, STORAGE_CLASS

BLOCK = "rancher.io/local-path"


@pytest.fixture
def pending(server):
    """Makes the claim one that has no volume yet."""
    ready.drop(server, CLAIM, "kfp-pytorch", "default")

    def made(storage_class):
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": storage_class}
        spec["resources"] = {"requests": {"storage": "1Gi"}}
        obj = {"metadata": ready.named("kfp-pytorch"), "spec": spec}
        ready.make(server, CLAIM, obj, {"phase": "Pending"})

    return made


def of_class(server, provisioner):
    ready.drop(server, STORAGE_CLASS, "shared")
    metadata = {"name": "late"}
    spec = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    ready.make(server, STORAGE_CLASS, {"metadata": metadata, **spec})


def test_a_claim_that_waits_for_its_first_pod_is_fine_where_its_class_is(server, pending, look):
    of_class(server, "efs.csi.aws.com")
    pending("late")
    [found] = [each for each in look() if each.about == "storage class"]
    assert found.level == "ok"
    assert "gets its volume with its first pod, of class late" in found.what


def test_a_claim_that_will_get_no_volume_of_its_class_is_named(server, pending, bad):
    of_class(server, BLOCK)
    pending("late")
    [found] = bad()
    assert (found.level, f"late ({BLOCK}) has no ReadWriteMany" in found.what) == ("error", True)


def test_a_class_that_nobody_knows_is_a_warning(server, pending, bad):
    of_class(server, "example.com/new")
    pending("late")
    [found] = bad()
    assert found.level == "warning"
    assert "Whether storage class late (example.com/new) has ReadWriteMany is not known" in (
        found.what
    )


def test_a_class_that_is_not_there_is_named(pending, bad):
    pending("fast")
    [found] = bad()
    assert "asks for the storage class fast, which is not there (there: shared)" in found.what
    assert found.mend == "kubectl describe pvc kfp-pytorch -n default"


def test_why_a_volume_cannot_be_made_is_told(server, pending, bad):
    pending("shared")
    about = {"kind": "PersistentVolumeClaim", "name": "kfp-pytorch", "namespace": "default"}
    event = {"metadata": ready.named("e"), "involvedObject": about, "type": "Warning"}
    event |= {"reason": "ProvisioningFailed", "message": "quota of the filer is used up"}
    ready.make(server, EVENT, event)
    [found] = bad()
    assert "gets no volume: quota of the filer is used up" in found.what


def test_without_a_default_class_a_new_claim_gets_no_volume(server, bad):
    ready.drop(server, CLAIM, "kfp-pytorch", "default")
    ready.drop(server, STORAGE_CLASS, "shared")
    found = bad()[1]
    assert (found.level, "No storage class is the default" in found.what) == ("error", True)


@pytest.fixture(scope="module")
def store():
    """An object store that answers with the status that is the bucket's name."""

    class Store(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(int(self.path.rpartition("-")[2]))
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (200, "ok", "answers, and has data-200 or does not tell"),
        (403, "ok", "answers, and has data-403 or does not tell"),
        (301, "ok", "does not tell (301)"),
        (404, "error", "has no bucket data-404"),
        (503, "warning", "answered 503"),
    ],
)
def test_a_store_is_asked_for_the_bucket(look, store, status, level, words):
    found = look(output_uri=f"minio://data-{status}/runs", output_endpoint=store)
    [answer] = [each for each in found if each.about == "object store"]
    assert (answer.level, words in answer.what) == (level, True), answer


def test_a_store_that_does_not_answer_is_named(look):
    endpoint = f"http://127.0.0.1:{free_port()}"
    found = look(output_uri="s3://data/runs", output_endpoint=endpoint)
    [answer] = [each for each in found if each.about == "object store"]
    assert answer.level == "error"
    assert answer.what.startswith(f"{endpoint} does not answer: ")
    assert f"curl -I {endpoint}/data" in answer.mend
