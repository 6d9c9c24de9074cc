"""The objects and their rules, called as controllers call them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    PYTORCHJOB,
    SERVICE,
    Kind,
)
from kfp_pytorch.local.apiserver.errors import denied
from kfp_pytorch.local.apiserver.registry import NAMESPACE, SECRET
from kfp_pytorch.local.apiserver.store.api import ADDED, DELETED, MODIFIED, Api, ApiError

Object = dict[str, Any]


def meta(name: str, **more: Any) -> Object:
    return {"name": name, "namespace": "default", **more}


def pod(name: str = "p", **spec: Any) -> Object:
    containers = [{"name": "c", "image": "x"}]
    return {"metadata": meta(name), "spec": {"containers": containers, **spec}}


def job(name: str = "j", **more: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    specs = {"Master": {"replicas": 1, "template": template}}
    return {"metadata": meta(name, **more), "spec": {"pytorchReplicaSpecs": specs}}


@pytest.fixture
def api() -> Api:
    return Api()


def test_a_started_server_has_imported_nothing_that_is_slow() -> None:
    code = (
        "import asyncio, pathlib, sys, tempfile\n"
        "from kfp_pytorch.local.apiserver.http.server import Server\n"
        "from kfp_pytorch.local.apiserver.store.api import Api\n"
        "asyncio.run(Server(Api(), pathlib.Path(tempfile.mkdtemp())).start())\n"
        "print([m for m in ('kubernetes', 'jsonschema_rs', 'torch', 'kfp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_goes_in_and_comes_out_is_a_copy(api: Api) -> None:
    sent = job()
    made = api.create(PYTORCHJOB, sent)
    sent["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 7
    made["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 8
    api.list(PYTORCHJOB)[0]["spec"].clear()
    stored = api.get(PYTORCHJOB, "default", "j")
    assert stored["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] == 1


def test_a_write_from_an_older_state_conflicts_and_a_read_change_write_does_not(api: Api) -> None:
    api.create(PYTORCHJOB, job())
    old = api.get(PYTORCHJOB, "default", "j")
    api.mutate(PYTORCHJOB, "default", "j", lambda o: o["spec"].update(nprocPerNode="2"))
    with pytest.raises(ApiError) as caught:
        api.update(PYTORCHJOB, old)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
    changed = api.mutate(PYTORCHJOB, "default", "j", lambda o: {**o, "spec": {**o["spec"], "a": 1}})
    assert changed["spec"]["nprocPerNode"] == "2"


def test_the_generation_counts_the_spec_alone_and_a_write_without_a_change_is_none(
    api: Api,
) -> None:
    def suspend(obj: Object) -> None:
        obj["spec"]["runPolicy"] = {"suspend": True}

    api.create(PYTORCHJOB, job())
    status = {"conditions": [{"type": "Created", "status": "True"}]}
    api.mutate(PYTORCHJOB, "default", "j", lambda o: o.update(status=status), "status")
    labelled = api.mutate(PYTORCHJOB, "default", "j", lambda o: o["metadata"].update(labels={}))
    assert labelled["metadata"]["generation"] == 1
    before = api.mutate(PYTORCHJOB, "default", "j", suspend)
    assert before["metadata"]["generation"] == 2
    assert before["status"] == status
    assert api.mutate(PYTORCHJOB, "default", "j", suspend) == before


def test_the_main_resource_cannot_write_the_status_nor_the_status_the_rest(api: Api) -> None:
    made = api.create(PYTORCHJOB, {**job(), "status": {"conditions": []}})
    assert "status" not in made
    made["status"] = {"conditions": []}
    assert "status" not in api.update(PYTORCHJOB, made)
    made["spec"]["nprocPerNode"] = "4"
    made["metadata"]["labels"] = {"a": "b"}
    after = api.update(PYTORCHJOB, made, "status")
    assert after["status"] == {"conditions": []}
    assert "nprocPerNode" not in after["spec"]
    assert "labels" not in after["metadata"]


async def events(count: int, watch: Any) -> list[tuple[str, str]]:
    found = []
    for _ in range(count):
        event, obj = await asyncio.wait_for(anext(watch), 60)
        found.append((event, obj["metadata"]["name"]))
    return found


def test_a_watch_begins_with_what_is_there_and_sees_its_namespace_alone(api: Api) -> None:
    async def story() -> None:
        api.create(NAMESPACE, {"metadata": {"name": "other"}})
        api.create(CONFIG_MAP, {"metadata": meta("a")})
        watch = api.watch(CONFIG_MAP, "default")
        everywhere = api.watch(CONFIG_MAP)
        api.create(CONFIG_MAP, {"metadata": {"name": "b", "namespace": "other"}})
        api.mutate(CONFIG_MAP, "default", "a", lambda o: o.update(data={"k": "v"}))
        api.delete(CONFIG_MAP, "default", "a")
        own = [(ADDED, "a"), (MODIFIED, "a"), (DELETED, "a")]
        assert await events(3, watch) == own
        assert await events(4, everywhere) == [own[0], (ADDED, "b"), *own[1:]]

    asyncio.run(story())


def test_a_watch_that_nobody_reads_any_more_costs_nothing(api: Api) -> None:
    watch = api.watch(CONFIG_MAP)
    table = api._table(CONFIG_MAP)
    assert len(table.watchers) == 1
    del watch
    assert len(table.watchers) == 0


def test_a_pod_that_runs_is_marked_and_its_kubelet_removes_it(api: Api) -> None:
    api.create(POD, pod(nodeName="n", terminationGracePeriodSeconds=7))
    marked = api.delete(POD, "default", "p")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
    assert api.get(POD, "default", "p")["metadata"]["deletionTimestamp"]
    api.delete(POD, "default", "p", grace=0)
    assert api.find(POD, "default", "p") is None


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_pod_that_no_container_runs_in_goes_at_once(api: Api, phase: str) -> None:
    node = {} if phase == "Pending" else {"nodeName": "n"}
    api.create(POD, pod(**node))
    api.mutate(POD, "default", "p", lambda o: o["status"].update(phase=phase), "status")
    api.delete(POD, "default", "p")
    assert api.find(POD, "default", "p") is None


def test_a_pod_is_bound_to_a_node_once_and_its_spec_does_not_change(api: Api) -> None:
    api.create(POD, pod())
    api.mutate(POD, "default", "p", lambda o: o["spec"].update(nodeName="n"))
    api.mutate(POD, "default", "p", lambda o: o["spec"]["containers"][0].update(image="y"))
    for change in ({"nodeName": "m"}, {"restartPolicy": "Never"}):
        with pytest.raises(ApiError, match="pod updates may not change fields") as caught:
            api.mutate(POD, "default", "p", lambda o, c=change: o["spec"].update(c))
        assert caught.value.code == 422


def test_a_deletion_with_the_uid_of_an_older_object_deletes_nothing(api: Api) -> None:
    uid = api.create(PYTORCHJOB, job())["metadata"]["uid"]
    api.delete(PYTORCHJOB, "default", "j", uid=uid)
    api.create(PYTORCHJOB, job())
    with pytest.raises(ApiError) as caught:
        api.delete(PYTORCHJOB, "default", "j", uid=uid)
    assert caught.value.code == 409
    assert api.find(PYTORCHJOB, "default", "j") is not None


def test_an_update_of_an_object_that_was_replaced_conflicts(api: Api) -> None:
    old = api.create(PYTORCHJOB, job())
    api.delete(PYTORCHJOB, "default", "j")
    api.create(PYTORCHJOB, job())
    del old["metadata"]["resourceVersion"]
    with pytest.raises(ApiError, match="UID in precondition"):
        api.update(PYTORCHJOB, old)


def test_finalizers_hold_an_object_until_the_last_is_gone(api: Api) -> None:
    api.create(PYTORCHJOB, job(finalizers=["a/b", "c/d"]))
    api.delete(PYTORCHJOB, "default", "j")
    for left in (["c/d"], []):
        assert api.find(PYTORCHJOB, "default", "j") is not None
        api.mutate(PYTORCHJOB, "default", "j", lambda o, v=left: o["metadata"].update(finalizers=v))
    assert api.find(PYTORCHJOB, "default", "j") is None


def test_a_dry_run_is_checked_and_not_kept(api: Api) -> None:
    assert api.create(PYTORCHJOB, job(), dry_run=True)["metadata"]["uid"]
    with pytest.raises(ApiError):
        api.create(PYTORCHJOB, {"metadata": meta("j"), "spec": {}}, dry_run=True)
    assert api.list(PYTORCHJOB) == []


def test_a_webhook_refuses_with_its_own_words(api: Api) -> None:
    def refuse(obj: Object) -> None:
        raise denied("check.example.org", f"{obj['metadata']['name']} is not wanted")

    api.add_webhook(PYTORCHJOB, refuse)
    with pytest.raises(ApiError, match="denied the request: j is not wanted"):
        api.create(PYTORCHJOB, job())


@pytest.mark.parametrize(
    ("kind", "obj", "field"),
    [
        (POD, {"spec": {}}, "spec.containers"),
        (POD, pod(containers=[{"name": "c"}]), "spec.containers[0].image"),
        (POD, pod(containers=[{"name": "A_b", "image": "x"}]), "spec.containers[0].name"),
        (POD, pod(containers=[{"name": "c", "image": "x"}] * 2), "spec.containers[1].name"),
        (POD, pod(restartPolicy="Sometimes"), "spec.restartPolicy"),
        (
            POD,
            pod(
                containers=[
                    {"name": "c", "image": "x", "resources": {"limits": {"memory": "4 GB"}}}
                ]
            ),
            "spec.containers[0].resources.requests[memory]",
        ),
        (
            POD,
            pod(
                containers=[
                    {
                        "name": "c",
                        "image": "x",
                        "volumeMounts": [{"name": "data", "mountPath": "/d"}],
                    }
                ]
            ),
            "spec.containers[0].volumeMounts[0].name",
        ),
        (DEPLOYMENT, {"spec": {"template": pod()}}, "spec.selector"),
        (SERVICE, {"metadata": meta("1-service"), "spec": {}}, "metadata.name"),
        (CONFIG_MAP, {"data": {"a b": "c"}}, "data[a b]"),
        (PYTORCHJOB, {"spec": {}}, "spec.pytorchReplicaSpecs"),
        (INFERENCE_SERVICE, {"spec": {}}, "spec.predictor"),
        (PYTORCHJOB, job(labels={"a": "x" * 64}), "metadata.labels"),
        (PYTORCHJOB, job(labels={"a/b/c": "x"}), "metadata.labels"),
        (PYTORCHJOB, job(annotations={"a": "x" * 300_000}), "metadata.annotations"),
        (
            PYTORCHJOB,
            job(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]),
            "metadata.ownerReferences.uid",
        ),
    ],
)
def test_a_wrong_object_is_refused_and_its_field_named(
    api: Api, kind: Kind, obj: Object, field: str
) -> None:
    with pytest.raises(ApiError) as caught:
        api.create(kind, {"metadata": meta("n"), **obj})
    assert caught.value.reason == "Invalid"
    assert field in [cause["field"] for cause in caught.value.details["causes"]]


@pytest.mark.parametrize(
    ("kind", "obj", "words"),
    [
        (CONFIG_MAP, {"data": {"a": 1}}, "number into Go struct field ConfigMap.data.a"),
        (POD, pod(terminationGracePeriodSeconds="30"), "terminationGracePeriodSeconds"),
        (POD, pod(containers="c"), "string into Go struct field Pod.spec.containers"),
        (
            POD,
            pod(containers=[{"name": "c", "env": [{"name": "A", "value": 3}]}]),
            "Pod.spec.containers[0].env[0].value of type string",
        ),
        (EVENT, {"involvedObject": {}, "lastTimestamp": "yesterday"}, "Event.lastTimestamp"),
        (EVENT, {"involvedObject": {}, "lastTimestamp": "2026-01-01T00:00:00"}, "v1.Time"),
    ],
)
def test_a_value_of_another_type_cannot_be_read(
    api: Api, kind: Kind, obj: Object, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        api.create(kind, {"metadata": meta("n"), **obj})
    assert caught.value.code == 400
    assert words in caught.value.message


def test_native_kinds_get_their_defaults(api: Api) -> None:
    secret = api.create(SECRET, {"metadata": meta("s"), "stringData": {"a": "b"}})
    assert (secret["type"], secret["data"]) == ("Opaque", {"a": "Yg=="})
    assert "stringData" not in secret
    claim = {"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": 1}}}}
    made = api.create(CLAIM, {"metadata": meta("c"), **claim})
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["resources"]["requests"]["storage"] == "1"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployment = api.create(DEPLOYMENT, {"metadata": meta("d"), "spec": spec})
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["spec"]["restartPolicy"] == "Always"
