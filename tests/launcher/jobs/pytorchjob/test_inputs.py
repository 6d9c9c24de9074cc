from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.declaration import inputs_of
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs, parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import longest_suffix, manifest


def parsed(**inputs: Any) -> Any:
    return parse_inputs(**{"image": "train:1", **inputs})


def env_of(**env: Any) -> dict[str, Any]:
    return {v["name"]: v.get("value") for v in parsed(env=env).env}


def test_an_image_is_all_that_is_needed() -> None:
    inputs = parsed()
    assert inputs.num_nodes == 1
    assert inputs.nproc_per_node == "1"
    assert inputs.output_uri.uri == "pvc://kfp-pytorch"
    assert inputs.folder("j").uri == "pvc://kfp-pytorch/j"
    assert (inputs.cleanup, inputs.clean_pod_policy) == ("on_failure", "Running")
    assert (inputs.queue_timeout, inputs.start_timeout, inputs.timeout) == (0, 1800, 0)


@pytest.mark.parametrize("unset", ["", "None", "null", " ", None, [], {}])
def test_every_way_of_leaving_an_input_alone_is_the_same(unset: Any) -> None:
    everything = dict.fromkeys(set(inputs_of(PyTorchJobInputs)) - {"image", "task_config"}, unset)
    assert parsed(**everything) == parsed()


@pytest.mark.parametrize("image", ["", None, "None", "null", " "])
def test_an_image_must_be_given(image: Any) -> None:
    with pytest.raises(InputError, match="image is not set"):
        parse_inputs(image=image)


def test_the_checked_inputs_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed().num_nodes = 3


def test_variables_are_rendered_the_same_way_every_time() -> None:
    rendered = env_of(
        EPOCHS=3, BATCH=64.0, LR=1e-05, HALF=0.5, DEBUG=True, OFF=False, BIG=2**60, EMPTY=""
    )
    assert rendered == {
        "EPOCHS": "3",
        "BATCH": "64",
        "LR": "1e-05",
        "HALF": "0.5",
        "DEBUG": "true",
        "OFF": "false",
        "BIG": "1152921504606846976",
        "EMPTY": "",
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is null"),
        ([1], "must be a string, a number"),
        (math.nan, "no finite number"),
        (math.inf, "no finite number"),
        ({"a": "b"}, "secretKeyRef"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_variable_that_can_be_none_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(InputError, match="X") as raised:
        parsed(env={"X": value})
    assert said in raised.value.message


@pytest.mark.parametrize(
    "env",
    ['{"TOKEN": "abc123"}', ["abc123"], {"TOKEN": ["abc123"]}, {"A": {"secretKeyRef": "abc123"}}],
)
def test_an_environment_of_the_wrong_kind_is_not_quoted_for_it_may_hold_secrets(env: Any) -> None:
    with pytest.raises(InputError, match="env") as raised:
        parsed(env=env)
    assert "abc123" not in raised.value.message


def test_a_number_names_a_secret_and_its_entry_as_a_text() -> None:
    (variable,) = parsed(env={"A": {"secretKeyRef": {"name": 7.0, "key": 5, "optional": True}}}).env
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "7", "key": "5", "optional": True}}


def test_a_variable_may_come_from_a_secret_by_name() -> None:
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert parsed(env={"HF_TOKEN": reference}).env == (
        {"name": "HF_TOKEN", "valueFrom": reference},
    )


@pytest.mark.parametrize("name", ["1ST", "A B", "", "A=B", "Ä"])
def test_a_name_that_no_variable_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="env has the name"):
        parsed(env={name: "x"})


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "PET_NNODES", "KFP_PYTORCH_OUTPUT"])
def test_variables_that_others_set_are_not_the_user_s(name: str) -> None:
    with pytest.raises(InputError, match=f"env may not set {name}"):
        parsed(env={name: "1"})


def test_numbers_among_arguments_are_rendered_and_null_is_named_by_its_place() -> None:
    assert parsed(args=["--epochs", 3.0, "--lr", 0.1, True]).args == (
        *("--epochs", "3", "--lr", "0.1", "true"),
    )
    with pytest.raises(InputError, match=r"args\[1\] is null"):
        parsed(args=["a", None])


def test_a_command_as_one_text_is_split_and_a_word_is_a_list_of_one() -> None:
    given = parsed(command="python -u 'my train.py'", args="--fast", image_pull_secrets="a")
    assert given.command == ("python", "-u", "my train.py")
    assert given.args == ("--fast",)
    assert given.image_pull_secrets == ("a",)
    assert parsed(namespace=2024, nproc_per_node=2, cpu=4).namespace == "2024"
    with pytest.raises(InputError, match=r"write a list: \['--lr', '3'\] or \['--lr 3'\]"):
        parsed(args="--lr 3")
    with pytest.raises(InputError, match=r"no shell runs it, which '\|' needs"):
        parsed(command="python train.py | tee log")


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("python train.py >log.txt", ">"),
        ("python train.py 2>err", "2>"),
        ("python train.py &>x", "&>"),
        ("python train.py <in", "<"),
        ("python train.py|tee log", "|"),
        ("cd /x&&python t.py", "&&"),
        ("(python t.py)", "("),
        ("cd /x", "cd"),
        ("source x", "source"),
        ("python t.py $?", "$?"),
        ("python t.py $$", "$$"),
        ('python t.py "in $HOME"', "$HOME"),
        ('python t.py "\\$x"', "\\$"),
        ("python t.py `date`", "`"),
        ("python t.py ~/data", "~"),
        ("python t.py *.txt", "*"),
        ("python t.py # comment", "#"),
    ],
)
def test_what_only_a_shell_does_is_refused_in_a_command_as_text(command: str, needs: str) -> None:
    message = f'no shell runs it, which {needs!r} needs. Write ["sh", "-c", '
    with pytest.raises(InputError, match=re.escape(message)):
        parsed(command=command)


def test_what_is_quoted_in_a_command_as_text_needs_no_shell() -> None:
    text = (
        r"""python -c 'import os; print(1);' --x='$5' --x=\$HOME "a > b; c" x#y [1,2] {a} a=~/b"""
    )
    assert parsed(command=text).command == (
        *("python", "-c", "import os; print(1);", "--x=$5", "--x=$HOME", "a > b; c"),
        *("x#y", "[1,2]", "{a}", "a=~/b"),
    )


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"num_nodes": 0}, "num_nodes is 0; it must be from 1 to 10000"),
        ({"num_nodes": 1.5}, "num_nodes must be a whole number, not 1.5"),
        ({"num_nodes": "two"}, "num_nodes must be a whole number"),
        ({"num_nodes": "9" * 5_000}, "num_nodes must be a whole number"),
        ({"num_nodes": True}, "num_nodes must be a whole number"),
        ({"nproc_per_node": "0"}, "nproc_per_node is 0; it must be from 1"),
        ({"command": [""]}, "command[0] is ''"),
        ({"command": [" ", "x"]}, "leave command out for the image's own"),
        ({"env": {"A": {"secretKeyRef": "s"}}}, "secretKeyRef is a str; it must be an object"),
        ({"env": {"A": {"secretKeyRef": {"name": "s"}}}}, "lacks key; it needs name and key"),
        ({"env": {"A": {"configMapKeyRef": {"key": "k"}}}}, "lacks name"),
        ({"env": {"A": {"secretKeyRef": {"name": "A_b", "key": "k"}}}}, "'A_b'; it must be at"),
        ({"env": {"A": {"fieldRef": {}}}}, "lacks fieldPath"),
        ({"image_pull_policy": "Often"}, "must be one of IfNotPresent, Always, Never"),
        ({"key": "k" * 256}, "at most 255 bytes, and this one has 256"),
        ({"key": "ж" * 128}, "and this one has 256"),
        ({"nproc_per_node": "many"}, "it must be a number, auto, cpu or gpu"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1"),
        ({"gpu_resource": "gpu"}, "write it with its domain"),
        ({"memory": "16GB"}, "no quantity"),
        ({"memory": "512m"}, "write Mi or Gi"),
        ({"memory": "4"}, "less than 1Mi"),
        ({"cpu": "four"}, "no quantity"),
        ({"memory": "1e999"}, "memory is '1e999'; the limit of Kubernetes is 2^63-1"),
        ({"cpu": "9" * 400}, "the limit of Kubernetes"),
        ({"cpu": "-1"}, "no quantity"),
        ({"shm_size": "1"}, "less than 1Mi"),
        ({"name": "---"}, "no job can be called after"),
        ({"name": "日本"}, "no job can be called after"),
        ({"namespace": "Team A"}, "namespace is 'Team A'"),
        ({"image": "a b"}, "no blanks"),
        ({"image": "train:"}, "image is 'train:'; write it as REGISTRY/NAME:TAG"),
        ({"image": "quay.io/Team/train:1"}, "the name has lower case letters"),
        ({"image": "train@sha256:beef"}, "REGISTRY/NAME@DIGEST"),
        ({"image": "$(IMAGE)"}, "image is '$(IMAGE)'"),
        ({"memory": "٣Gi"}, "no quantity"),
        ({"env": {"A": {"secretKeyRef": {"name": "s", "key": "a/b"}}}}, "key is 'a/b'"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 3}]}, "needs the effect NoExecute"),
        ({"env": {"A": {"fieldRef": {"fieldPath": "spec.image"}}}}, "write metadata.name"),
        ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "has the key 'a b'"),
        ({"tolerations": [{"key": "a", "value": "b c"}]}, "tolerations[0].value is 'b c'"),
        ({"pod_template_patch": {"spec": "x"}}, "pod_template_patch.spec must be an object"),
        ({"output_uri": "ftp://x"}, "must begin with pvc://CLAIM"),
        ({"key": "../other"}, "'..'"),
        ({"key": "{{$.pipeline_job_uuid}}"}, "nothing filled in"),
        ({"resume_from": "/data"}, "resume_from is '/data'"),
        ({"output_secret": "My Secret"}, "output_secret is 'My Secret'"),
        ({"output_secret": "a..b"}, "single '.'"),
        ({"service_account": "a" * 254}, "at most 253"),
        ({"namespace": "a" * 64}, "at most 63"),
        ({"image_pull_secrets": ["ok", "Not_OK"]}, "image_pull_secrets[1]"),
        ({"image_pull_policy": "Sometimes"}, "must be one of"),
        ({"restart_policy": "Maybe"}, "OnFailure, Never, Always, ExitCode"),
        ({"clean_pod_policy": "all"}, "Running, All, Keep"),
        ({"cleanup": "sometimes"}, "on_failure, always, never"),
        ({"ttl_seconds": 0}, "at least 120 seconds"),
        ({"ttl_seconds": 60}, "-1 keeps it for ever"),
        ({"timeout": -5}, "timeout is -5"),
        ({"run_as_root": "yes"}, "run_as_root must be true or false"),
        ({"labels": {"a b": "c"}}, "labels has the key 'a b'"),
        ({"labels": {"a": "x" * 64}}, "labels['a']"),
        ({"labels": {"a": None}}, "labels['a'] is null"),
        ({"labels": {"kfp-pytorch/run-id": "x"}}, "the launcher and the operator set it"),
        ({"annotations": {"a": "x" * 262_144}}, "annotations has 262,145 bytes; the limit of"),
        ({"annotations": {"training.kubeflow.org/x": "y"}}, "the launcher and the operator"),
        ({"node_selector": {"zone": "a b"}}, "node_selector['zone']"),
        ({"tolerations": [{"keys": "x"}]}, "unknown field 'keys'"),
        ({"tolerations": [{"key": "x", "operator": "In"}]}, "must be Equal or Exists"),
        ({"tolerations": [{"operator": "Equal", "value": "x"}]}, "has no key"),
        ({"tolerations": [{"operator": "Exists", "value": "x"}]}, "it may have none"),
        ({"tolerations": [{"key": "x", "effect": "Never"}]}, "NoSchedule"),
        ({"tolerations": {"key": "x"}}, "tolerations must be a list"),
        ({"affinity": {"nodeAfinity": {}}}, "unknown field 'nodeAfinity'"),
        ({"security_context": {"privileged": True}}, "unknown field 'privileged'"),
        ({"pod_template_patch": {"containers": []}}, "may have metadata, spec"),
        ({"gpus": 1}, "has no input 'gpus'"),
    ],
)
def test_bad_input_names_the_value_the_limit_and_the_way_out(
    inputs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as raised:
        parsed(**inputs)
    assert said in raised.value.message


@pytest.mark.parametrize(
    "image",
    [
        "train",
        "team/train:1.4",
        "REGISTRY/train:TAG",
        "localhost:5000/train",
        "[::1]:5000/a/b__c-d.e:x_1",
        f"ghcr.io/o/train:1@sha256:{'0a' * 32}",
    ],
)
def test_an_image_may_have_a_registry_a_tag_and_a_digest(image: str) -> None:
    assert parse_inputs(image=image).image == image


def test_a_part_of_the_patch_that_is_null_changes_nothing() -> None:
    patch = {"metadata": None, "spec": None}
    made = manifest(
        parsed(pod_template_patch=patch), job_name="j", labels={}, annotations={}, owner=None
    )
    assert made == manifest(parsed(), job_name="j", labels={}, annotations={}, owner=None)


def test_a_very_long_value_hides_neither_its_name_nor_the_way_out() -> None:
    with pytest.raises(InputError) as raised:
        parsed(cleanup="x" * 100_000)
    said = raised.value.message
    assert said.startswith("cleanup is 'xxx")
    assert said.endswith("it must be one of on_failure, always, never.")
    assert len(said) < 1200


def test_what_is_too_long_for_a_command_line_is_refused_with_advice() -> None:
    with pytest.raises(InputError) as raised:
        parsed(args=["--ok", "x" * 130 * 1024])
    assert "args[1] alone 133,120; the limit is 100,000" in raised.value.message
    assert "ConfigMap" in raised.value.message
    parsed(args=["x" * 99_000])


def test_the_size_that_counts_is_that_of_the_bytes() -> None:
    with pytest.raises(InputError, match=r"env\['X'\] alone 120,000"):
        parsed(env={"X": "✨" * 40_000})


def test_the_backoff_limit_fits_the_nodes_for_one_crash_counts_once_on_each() -> None:
    assert parsed(num_nodes=1).backoff_limit == 3
    assert parsed(num_nodes=8).backoff_limit == 24
    assert parsed(num_nodes=8, backoff_limit=-1).backoff_limit == 24
    assert parsed(num_nodes=8, backoff_limit=0).backoff_limit == 0


@pytest.mark.parametrize(("limit", "restarts"), [(-1, 3), (0, 1), (5, 5)])
def test_restarts_that_the_operator_does_not_count_are_limited_too(
    limit: int, restarts: int
) -> None:
    def limit_of(**inputs: Any) -> int:
        job = manifest(parsed(**inputs), job_name="j", labels={}, annotations={}, owner=None)
        return PYTORCH_JOB.restart_limit(job)

    assert limit_of(restart_policy="ExitCode", backoff_limit=limit) == restarts
    assert limit_of(backoff_limit=limit) == 0


def test_one_process_for_each_gpu_unless_said_otherwise() -> None:
    assert parsed(gpus_per_node=4).nproc_per_node == "4"
    assert parsed(gpus_per_node=4, nproc_per_node="1").nproc_per_node == "1"
    assert parsed(nproc_per_node=2.0).nproc_per_node == "2"
    assert parsed(nproc_per_node="auto").nproc_per_node == "auto"


def test_resources_are_requested_and_limited_alike() -> None:
    assert parsed(
        cpu="4", memory="16Gi", gpus_per_node=2, gpu_resource="amd.com/gpu"
    ).resources == {
        "requests": {"cpu": "4", "memory": "16Gi"},
        "limits": {"cpu": "4", "memory": "16Gi", "amd.com/gpu": "2"},
    }


def test_whole_numbers_that_arrive_as_floats_are_whole_again() -> None:
    toleration = {"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 300.0}
    patch = {"spec": {"terminationGracePeriodSeconds": 60.0, "x": [{"weight": 1.0}]}}
    inputs = parsed(
        tolerations=[toleration], security_context={"fsGroup": 100.0}, pod_template_patch=patch
    )
    assert repr(inputs.tolerations[0]["tolerationSeconds"]) == "300"
    assert repr(inputs.security_context["fsGroup"]) == "100"
    spec = inputs.pod_template_patch["spec"]
    assert repr(spec["terminationGracePeriodSeconds"]) == "60"
    assert repr(spec["x"][0]["weight"]) == "1"


@pytest.mark.parametrize(
    ("nodes", "suffix"),
    [
        (1, "-master-0"),
        (2, "-worker-0"),
        (11, "-worker-9"),
        (13, "-worker-11"),
        (1000, "-worker-998"),
    ],
)
def test_the_longest_name_that_the_operator_makes_of_the_job_s(nodes: int, suffix: str) -> None:
    assert longest_suffix(parsed(num_nodes=nodes)) == suffix


def test_keep_is_the_operator_s_none_for_none_means_unset() -> None:
    assert parsed(clean_pod_policy="Keep").clean_pod_policy == "None"
    assert parsed(clean_pod_policy="None").clean_pod_policy == "Running"
