from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

Check = Callable[[str, dict[str, Any]], None]
OWNER = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "name": "wf",
    "uid": "1",
    "controller": False,
    "blockOwnerDeletion": False,
}


def job(**inputs: Any) -> dict[str, Any]:
    parsed = parse_inputs(**{"image": "train:1", **inputs})
    return manifest(
        parsed, job_name="j-1", labels={"app": "x"}, annotations={"a/b": "1"}, owner=None
    )


def template(**inputs: Any) -> dict[str, Any]:
    return job(**inputs)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]


def spec(**inputs: Any) -> dict[str, Any]:
    return template(**inputs)["spec"]


def pytorch(**inputs: Any) -> dict[str, Any]:
    return next(c for c in spec(**inputs)["containers"] if c["name"] == "pytorch")


def env(**inputs: Any) -> dict[str, Any]:
    return {v["name"]: v.get("value") for v in pytorch(**inputs)["env"]}


def expanded(text: str, variables: dict[str, str]) -> str:
    """What the kubelet makes of an argument or a value: third_party/forked/golang/expansion."""
    pattern = re.compile(r"\$(\$|\(([^)]*)\))")
    return pattern.sub(lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text)


def test_one_master_and_the_rest_workers_all_alike(check_crd: Check) -> None:
    made = job(num_nodes=3)
    check_crd("pytorchjobs", made)
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert {role: r["replicas"] for role, r in replicas.items()} == {"Master": 1, "Worker": 2}
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    assert list(job()["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_the_job_carries_the_launcher_s_labels_and_its_owner(check_crd: Check) -> None:
    parsed = parse_inputs(image="i", namespace="team", labels={"team": "a"}, annotations={"x": 1})
    made = manifest(parsed, job_name="j", labels={"l": "1"}, annotations={"n": "2"}, owner=OWNER)
    check_crd("pytorchjobs", made)
    assert made["metadata"] == {
        "name": "j",
        "namespace": "team",
        "labels": {"team": "a", "l": "1"},
        "annotations": {"x": "1", "n": "2"},
        "ownerReferences": [OWNER],
    }
    metadata = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["metadata"]
    assert metadata["labels"] == {"sidecar.istio.io/inject": "false", "team": "a", "l": "1"}
    assert metadata["annotations"] == {"sidecar.istio.io/inject": "false", "x": "1"}


def test_the_mesh_stays_out_unless_asked_for_and_the_user_s_word_counts() -> None:
    inject = "sidecar.istio.io/inject"
    for part in ("labels", "annotations"):
        assert template()["metadata"][part][inject] == "false"
        assert inject not in template(istio_injection=True)["metadata"][part]
        assert template(**{part: {inject: True}})["metadata"][part][inject] == "true"


def test_the_policies_of_the_run() -> None:
    made = job(num_nodes=4, active_deadline=3600, ttl_seconds=600, restart_policy="ExitCode")
    assert made["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 12,
        "ttlSecondsAfterFinished": 600,
        "activeDeadlineSeconds": 3660,
    }
    assert made["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert "ttlSecondsAfterFinished" not in job(ttl_seconds=-1)["spec"]["runPolicy"]


def test_a_claim_is_mounted_and_the_job_s_folder_lies_in_it() -> None:
    inputs = {"output_uri": "pvc://claim/teams/a", "key": "run-1", "shm_size": "0"}
    assert env(**inputs)["KFP_PYTORCH_OUTPUT"] == "/mnt/kfp-pytorch/output/teams/a/run-1/j-1"
    assert env(**inputs)["KFP_PYTORCH_TERMINATION_LOG"] == "/dev/termination-log"
    assert spec(**inputs)["volumes"] == [
        {"name": "kfp-pytorch-output", "persistentVolumeClaim": {"claimName": "claim"}}
    ]
    assert pytorch(**inputs)["volumeMounts"] == [
        {"name": "kfp-pytorch-output", "mountPath": "/mnt/kfp-pytorch/output"}
    ]


def test_another_job_s_folder_is_mounted_read_only() -> None:
    same = {"output_uri": "pvc://claim", "resume_from": "pvc://claim/run-0/j-0", "shm_size": "0"}
    assert env(**same)["KFP_PYTORCH_RESUME_FROM"] == "/mnt/kfp-pytorch/resume/run-0/j-0"
    assert len(spec(**same)["volumes"]) == 1
    assert pytorch(**same)["volumeMounts"][1] == {
        "name": "kfp-pytorch-output",
        "mountPath": "/mnt/kfp-pytorch/resume",
        "readOnly": True,
    }
    other = {"output_uri": "s3://bucket", "resume_from": "pvc://old/j-0", "shm_size": "0"}
    assert [v["name"] for v in spec(**other)["volumes"]] == ["kfp-pytorch-resume"]
    assert pytorch(**other)["volumeMounts"][0]["readOnly"] is True
    assert "KFP_PYTORCH_RESUME_FROM" not in env()


def test_a_bucket_is_named_by_its_uri_and_its_credentials_by_their_secret(
    check_crd: Check,
) -> None:
    common = {"key": "r", "shm_size": "0"}
    s3 = {"output_uri": "minio://mlpipeline/p", "output_secret": "keys", **common}
    check_crd("pytorchjobs", job(**s3))
    assert env(**s3)["KFP_PYTORCH_OUTPUT"] == "s3://mlpipeline/p/r/j-1"
    assert pytorch(**s3)["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "volumes" not in spec(**s3)
    gs = {"output_uri": "gs://bucket", "output_secret": "key", **common}
    check_crd("pytorchjobs", job(**gs))
    path = env(**gs)["GOOGLE_APPLICATION_CREDENTIALS"]
    (mount,) = pytorch(**gs)["volumeMounts"]
    assert path == f"{mount['mountPath']}/gcloud-application-credentials.json"
    assert mount["readOnly"] is True
    assert spec(**gs)["volumes"][0]["secret"] == {"secretName": "key"}
    own = pytorch(**gs, env={"GOOGLE_APPLICATION_CREDENTIALS": "/own.json"})["env"]
    assert [v["value"] for v in own if v["name"].startswith("GOOGLE")] == ["/own.json"]


def test_the_pods_keep_to_the_restricted_standard_and_can_write_to_a_claim() -> None:
    assert spec()["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pytorch()["securityContext"] == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_an_image_may_run_as_root_or_as_its_own_user_when_that_is_asked_for() -> None:
    root = {"run_as_root": True}
    assert spec(**root)["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pytorch(**root)["securityContext"] == {"allowPrivilegeEscalation": False}
    own = {"run_as_user": 0}
    assert "runAsUser" not in spec(**own)["securityContext"]
    assert "runAsNonRoot" not in spec(**own)["securityContext"]
    assert pytorch(**own)["securityContext"]["runAsNonRoot"] is True


def test_the_security_context_can_be_changed_and_a_default_taken_away() -> None:
    changed = spec(security_context={"fsGroup": 100.0, "fsGroupChangePolicy": None})
    assert changed["securityContext"]["fsGroup"] == 100
    assert "fsGroupChangePolicy" not in changed["securityContext"]


@pytest.mark.parametrize(
    "inputs", [{}, {"num_nodes": 3}, {"nproc_per_node": "auto"}, {"gpus_per_node": 1}]
)
def test_shared_memory_is_memory_for_loader_workers_share_it_too(inputs: dict[str, Any]) -> None:
    for replica in job(**inputs)["spec"]["pytorchReplicaSpecs"].values():
        made = replica["template"]["spec"]
        assert made["volumes"][-1] == {
            "name": "kfp-pytorch-shm",
            "emptyDir": {"medium": "Memory"},
        }
        assert made["containers"][0]["volumeMounts"][-1]["mountPath"] == "/dev/shm"


def test_shared_memory_has_the_size_that_was_asked_for_or_is_left_as_it_is() -> None:
    assert spec(shm_size="8Gi")["volumes"][-1]["emptyDir"]["sizeLimit"] == "8Gi"
    assert "/dev/shm" not in str(spec(gpus_per_node=1, shm_size="0"))


def test_a_mount_at_dev_shm_in_the_patch_is_not_doubled() -> None:
    mounts = [{"name": "m", "mountPath": "/dev/shm"}]
    patch = {
        "spec": {
            "volumes": [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            "containers": [{"name": "pytorch", "volumeMounts": mounts}],
        }
    }
    made = spec(gpus_per_node=8, pod_template_patch=patch)
    assert str(made).count("/dev/shm") == 1


def test_the_operator_s_container_falls_back_to_its_log() -> None:
    container = pytorch()
    assert container["name"] == "pytorch"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container["terminationMessagePath"] == "/dev/termination-log"


NASTY = [
    '{"a":"b"}',
    "it's",
    'say "hi"',
    "a\\b",
    "$HOME",
    "$(date)",
    "$(RANK)",
    "$$",
    "$$(RANK)",
    "a$",
    "{{x}}",
    "✨",
    "👩‍👩‍👧",
    "",
    "--foo",
    "two\nlines",
    "\t",
]


@pytest.mark.parametrize("text", NASTY)
def test_text_reaches_the_container_byte_for_byte(text: str, check_crd: Check) -> None:
    made = job(command=["python", text], args=[text, f"--key={text}"], env={"X": text})
    check_crd("pytorchjobs", made)
    container = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    variables = {"RANK": "0", "date": "today"}
    argv = [expanded(a, variables) for a in container["command"] + container["args"]]
    assert argv == ["python", text, text, f"--key={text}"]
    assert expanded(container["env"][0]["value"], variables) == text


@given(st.text(alphabet="$()AB\\", max_size=12))
def test_no_mix_of_dollars_and_brackets_is_changed_by_the_kubelet(text: str) -> None:
    (argument,) = pytorch(args=[text])["args"]
    assert expanded(argument, {"A": "x", "": "y"}) == text


def test_a_patch_is_merged_by_the_names_of_things(check_crd: Check) -> None:
    patch = {
        "metadata": {"labels": {"extra": "1"}, "annotations": {"note": "x"}},
        "spec": {
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 120.0,
            "tolerations": [{"key": "b", "operator": "Exists"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [{"name": "fetch", "image": "busybox"}],
            "containers": [
                {
                    "name": "pytorch",
                    "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "workingDir": "/app",
                },
                {"name": "side", "image": "side:1"},
            ],
        },
    }
    inputs = {"env": {"A": "1"}, "tolerations": [{"key": "a", "operator": "Exists"}]}
    made = job(**inputs, shm_size="0", pod_template_patch=patch)
    check_crd("pytorchjobs", made)
    patched = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    assert patched["metadata"]["labels"] == {
        "sidecar.istio.io/inject": "false",
        "app": "x",
        "extra": "1",
    }
    pod = patched["spec"]
    assert [t["key"] for t in pod["tolerations"]] == ["a", "b"]
    assert [v["name"] for v in pod["volumes"]] == ["kfp-pytorch-output", "v"]
    assert [c["name"] for c in pod["containers"]] == ["pytorch", "side"]
    container = pod["containers"][0]
    values = {v["name"]: v["value"] for v in container["env"]}
    assert (values["A"], values["B"]) == ("2", "3")
    assert "KFP_PYTORCH_OUTPUT" in values
    assert [m["mountPath"] for m in container["volumeMounts"]] == ["/mnt/kfp-pytorch/output", "/v"]
    assert (container["image"], container["workingDir"]) == ("train:1", "/app")
    assert repr(pod["terminationGracePeriodSeconds"]) == "120"


def test_a_pull_secret_is_named_once() -> None:
    secrets = spec(image_pull_secrets=["a", "b", "a"])["imagePullSecrets"]
    assert secrets == [{"name": "a"}, {"name": "b"}]


def test_a_patch_may_take_away_by_null_and_by_delete() -> None:
    patch = {
        "spec": {
            "securityContext": {"fsGroup": None},
            "containers": [
                {
                    "name": "pytorch",
                    "env": [{"name": "A", "$patch": "delete"}],
                    "terminationMessagePolicy": None,
                }
            ],
        }
    }
    made = spec(env={"A": "1", "B": "2"}, pod_template_patch=patch)
    assert "fsGroup" not in made["securityContext"]
    assert next(v["name"] for v in made["containers"][0]["env"]) == "B"
    assert "terminationMessagePolicy" not in made["containers"][0]


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"containers": [{"name": "pytorch", "$patch": "delete"}]}, "must stay"),
        ({"containers": [{"image": "x"}]}, "must be an object with 'name'"),
        ({"containers": [{"name": "side"}]}, "'side' has no image"),
        ({"containers": {"name": "x"}}, "what it would change is a list"),
        ({"containers": "x"}, "where an object or a list is expected"),
        ({"volumes": ["x"]}, "must be an object with 'name'"),
        ({"containers": [{"name": "pytorch", "$patch": "merge"}]}, "only delete is known"),
        ({"volumes": [{"name": ["x"]}]}, "must be an object with 'name'"),
        ({"initContainers": {"name": "x", "image": "i"}}, "initContainers is {'name': 'x'"),
        ({"initContainers": "x"}, "it must be a list"),
        (
            {"containers": [{"name": "s", "image": "i", "volumeMounts": {"name": "x"}}]},
            "container 's'.volumeMounts is {'name': 'x'}; it must be a list",
        ),
        (
            {"containers": [{"name": "s", "image": "i", "env": [{"name": "A", "value": [1]}]}]},
            "s's variable 'A' must be a string",
        ),
        ({"restartPolicy": "Never"}, "use the input restart_policy"),
        ({"initContainers": [{"name": "init-pytorch", "image": "i"}]}, "the operator adds its own"),
        (
            {"containers": [{"name": "pytorch", "env": [{"name": "RANK", "value": "0"}]}]},
            "pod_template_patch may not set RANK: the operator does",
        ),
        (
            {"containers": [{"name": "pytorch", "env": [{"name": "KFP_PYTORCH_OUTPUT"}]}]},
            "pod_template_patch may not set KFP_PYTORCH_OUTPUT: the launcher does",
        ),
        (
            {
                "containers": [
                    {"name": "pytorch", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}
                ]
            },
            "names the volume 'x'",
        ),
    ],
)
def test_a_patch_that_leaves_no_pod_to_run_is_refused(patch: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        job(pod_template_patch={"spec": patch})
    assert said in raised.value.message


@pytest.mark.parametrize(
    "env",
    [
        {"name": "T", "value": "hf_1"},
        "T=hf_1",
        [{"name": "T", "value": ["hf_1"]}],
        [{"name": "TOKEN", "value": {"x": 1}}],
    ],
)
def test_what_a_variable_holds_is_not_told_whatever_is_wrong_with_it(env: Any) -> None:
    for name in ("pytorch", "other"):
        patch = {"spec": {"containers": [{"name": name, "image": "i", "env": env}]}}
        with pytest.raises(InputError) as raised:
            job(env={"TOKEN": "hf_1"}, pod_template_patch=patch)
        assert "hf_1" not in raised.value.message


def test_numbers_in_a_patch_become_the_texts_that_kubernetes_takes() -> None:
    variables = [{"name": "N", "value": 3.0}, {"name": "DEBUG", "value": True}]
    patch = {
        "metadata": {"labels": {"version": 2.0, "env": "prod"}, "annotations": {"scrape": True}},
        "spec": {"initContainers": [{"name": "wait", "image": "i", "env": variables}]},
    }
    made = template(pod_template_patch=patch)
    assert made["metadata"]["labels"]["version"] == "2"
    assert made["metadata"]["labels"]["env"] == "prod"
    assert made["metadata"]["annotations"]["scrape"] == "true"
    values = [variable["value"] for variable in made["spec"]["initContainers"][0]["env"]]
    assert values == ["3", "true"]
