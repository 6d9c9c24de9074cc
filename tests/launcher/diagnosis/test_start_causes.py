"""Containers that do not start: what is told of the kubelet's words, and what to do."""

from __future__ import annotations

import pytest
from harness.objects.evident import container, end, first_line, of, pod

PULL = (
    'Back-off pulling image "train:1": ErrImagePull: rpc error: code = Unknown desc = failed to '
    'pull and unpack image "docker.io/library/train:1": failed to resolve reference '
    '"docker.io/library/train:1": '
)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("pull access denied, repository does not exist or may require authorization",
         "image_pull_secrets"),
        ("docker.io/library/train:1: not found", "has no such image"),
        ("manifest unknown: manifest unknown", "has no such image"),
        ('failed to do request: Head "https://r.acme": dial tcp: lookup r.acme: no such host',
         "does not reach the registry"),
        ("429 Too Many Requests - Server message: toomanyrequests: rate limit", "mirror the image"),
        ("no match for platform in manifest: not found", "another kind of processor"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority",
         "certificate"),
        ("write /var/lib/containerd/tmp: no space left on device", "disk is full"),
        ("no matching manifest for linux/arm64/v8 in the manifest list", "another kind of"),
        ("no basic auth credentials", "image_pull_secrets"),
        ("unexpected status from HEAD request to https://r.acme/v2/t/manifests/1: 404 Not Found",
         "has no such image"),
        ("unexpected status from GET request to https://r.acme/v2/t/manifests/1: 503 Service "
         "Unavailable", "registry has an error"),
        ("net/http: TLS handshake timeout", "does not reach the registry"),
    ],
)  # fmt: skip
def test_why_an_image_cannot_be_pulled_is_told_first_with_its_own_advice(
    words: str, advice: str
) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": PULL + words}}
    found = of(pod(0, container(state=waiting), phase="Pending"))
    assert "cannot pull the image, ImagePullBackOff, image 'train:1': … " in first_line(found)
    assert "rpc error" not in first_line(found)
    assert words[-20:] in first_line(found)
    assert advice in found.message.splitlines()[1]


@pytest.mark.parametrize(
    ("reason", "words", "advice"),
    [
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root",
         "run_as_user"),
        ("CreateContainerConfigError", "couldn't find key k in Secret team/hf", "with that key"),
        ("CreateContainerConfigError", 'secret "hf" not found', "Create the Secret"),
        ("RunContainerError", 'exec: "./train.sh": permission denied: unknown',
         "executable in the image"),
        ("RunContainerError", 'exec: "trian": not in $PATH', "Check command"),
        ("CreateContainerError", "exec format error", "another kind of processor"),
        ("CreateContainerError", "failed to generate spec: no command specified", "set command"),
        ("RunContainerError", "nvidia-container-cli: requirement error: unsatisfied condition: "
         "cuda>=12.8, please update your driver", "older CUDA"),
        ("RunContainerError", "nvidia-container-cli: initialization error: nvml error: driver not "
         "loaded", "GPUs do not work"),
        ("RunContainerError", "container init was OOM-killed (memory limit too low?)",
         "raise memory"),
        ("RunContainerError", 'error mounting "/var/lib/kubelet/x" to rootfs at "/data/a": not a '
         "directory", "the task's mounts"),
        ("SignatureValidationFailed", "rejected by policy", "signed image"),
    ],
)  # fmt: skip
def test_a_container_that_cannot_be_made_comes_with_advice_on_what_is_wrong(
    reason: str, words: str, advice: str
) -> None:
    waiting = {"waiting": {"reason": reason, "message": words}}
    found = of(pod(0, container(state=waiting), phase="Pending"))
    assert first_line(found).endswith(f"{reason}, image 'train:1': {words}.")
    assert advice in found.message.splitlines()[1]


def test_a_program_for_another_processor_is_known_by_how_it_ended() -> None:
    runtime = "OCI runtime create failed: unable to start container process: exec format error"
    found = of(pod(0, container(state=end(128, "StartError", runtime))))
    assert first_line(found).endswith("cannot be started (StartError): exec format error.")
    assert "another kind of processor" in found.message.splitlines()[1]


def test_workers_that_wait_for_a_master_that_runs_have_no_name_for_it() -> None:
    waits = container("init-pytorch", state={"running": {}})
    master = pod(0, container(state={"running": {}}))
    found = of(master, pod(1, init=(waits,), phase="Pending"))
    assert "DNS does not answer" in found.message.splitlines()[1]
