"""The server as the official Python client sees it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import pytest
from harness.api_server import ThreadedServer
from kubernetes import client as kubernetes
from kubernetes import config, watch
from kubernetes.client.exceptions import ApiException

from kfp_pytorch.launcher.constants import CONFIG_MAP, POD

JOBS = ("kubeflow.org", "v1", "default", "pytorchjobs")

Object = dict[str, Any]


def job(name: str, **meta: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, **meta},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
    }


@pytest.fixture
def core(api_server: ThreadedServer) -> kubernetes.CoreV1Api:
    return kubernetes.CoreV1Api(config.new_client_from_config(str(api_server.kubeconfig)))


@pytest.fixture
def custom(core: kubernetes.CoreV1Api) -> kubernetes.CustomObjectsApi:
    return kubernetes.CustomObjectsApi(core.api_client)


def test_lists_come_in_pages_that_hold_each_object_once(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    for index in range(10):
        core.create_namespaced_config_map("default", {"metadata": {"name": f"c{index}"}})
    page = core.list_namespaced_config_map("default", limit=4)
    assert page.metadata.remaining_item_count == 6
    # What is made before the last page is read does not move what was not read yet.
    core.create_namespaced_config_map("default", {"metadata": {"name": "a"}})
    seen = [item.metadata.name for item in page.items]
    while page.metadata._continue:
        page = core.list_namespaced_config_map(
            "default", limit=4, _continue=page.metadata._continue
        )
        seen += [item.metadata.name for item in page.items]
    assert seen == [f"c{index}" for index in range(10)]


def test_a_page_of_a_list_that_is_forgotten_is_expired(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    for name in ("a", "b"):
        core.create_namespaced_config_map("default", {"metadata": {"name": name}})
    page = core.list_namespaced_config_map("default", limit=1)
    api_server.api._table(CONFIG_MAP).forgotten = api_server.api.revision + 1
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_config_map("default", limit=1, _continue=page.metadata._continue)
    assert caught.value.status == 410


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=x", ["a"]),
        ("app==x,tier", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x, y)", ["a", "b"]),
        ("app notin (x,z)", ["b", "c"]),
        ("tier", ["a"]),
        ("!app", ["c"]),
        ("app in (x),!tier", []),
        ("size>3", ["b"]),
    ],
)
def test_a_list_has_the_objects_that_the_labels_select(
    core: kubernetes.CoreV1Api, selector: str, names: list[str]
) -> None:
    labels = {"a": {"app": "x", "tier": "1", "size": "3"}, "b": {"app": "y", "size": "10"}, "c": {}}
    for name, found in labels.items():
        body = {"metadata": {"name": name, "labels": found}}
        core.create_namespaced_config_map("default", body)
    page = core.list_namespaced_config_map("default", label_selector=selector)
    assert [item.metadata.name for item in page.items] == names


@pytest.mark.parametrize("selector", ["a in x", "a in (x", "=a", "a=b c", "a,", "a>b"])
def test_a_selector_that_cannot_be_read_is_refused(
    core: kubernetes.CoreV1Api, selector: str
) -> None:
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_config_map("default", label_selector=selector)
    assert caught.value.status == 400


def test_a_list_has_the_objects_that_the_fields_select(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    for name in ("a", "b"):
        about = {"kind": "Pod", "name": name, "namespace": "default", "uid": f"uid-{name}"}
        core.create_namespaced_event(
            "default", {"metadata": {"name": f"e-{name}"}, "involvedObject": about}
        )
        spec = {"nodeName": name, "containers": [{"name": "c", "image": "x"}]}
        core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
    events = core.list_namespaced_event(
        "default", field_selector="involvedObject.kind=Pod,involvedObject.uid=uid-b"
    )
    assert [event.metadata.name for event in events.items] == ["e-b"]
    pods = core.list_pod_for_all_namespaces(field_selector="spec.nodeName!=a,status.phase=Pending")
    assert [pod.metadata.name for pod in pods.items] == ["b"]


def test_a_watch_resumes_and_misses_nothing(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    first = core.create_namespaced_config_map("default", {"metadata": {"name": "a"}})
    core.patch_namespaced_config_map("a", "default", {"data": {"k": "v"}})
    core.delete_namespaced_config_map("a", "default")
    events = watch.Watch().stream(
        core.list_namespaced_config_map,
        "default",
        resource_version=first.metadata.resource_version,
        timeout_seconds=1,
    )
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]


def test_an_object_that_comes_into_or_leaves_a_selection_is_added_or_deleted(
    core: kubernetes.CoreV1Api,
) -> None:
    made = core.create_namespaced_config_map("default", {"metadata": {"name": "a"}})
    for labels in ({"app": "x"}, {"app": "x", "b": "c"}, {"app": "y"}):
        core.patch_namespaced_config_map("a", "default", {"metadata": {"labels": labels}})
    events = watch.Watch().stream(
        core.list_namespaced_config_map,
        "default",
        label_selector="app=x",
        resource_version=made.metadata.resource_version,
        timeout_seconds=1,
    )
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_of_a_version_that_is_too_old_says_so_in_an_event(
    core: kubernetes.CoreV1Api,
) -> None:
    with pytest.raises(ApiException) as caught:
        list(
            watch.Watch().stream(
                core.list_namespaced_config_map, "default", resource_version="1", timeout_seconds=1
            )
        )
    assert caught.value.status == 410
    assert "too old resource version" in caught.value.reason


def test_patches_of_each_kind_change_what_they_name(
    api_server: ThreadedServer, custom: kubernetes.CustomObjectsApi
) -> None:
    custom.create_namespaced_custom_object(*JOBS, job("j", labels={"a": "b", "c": "d"}))
    merge = {"metadata": {"labels": {"a": None}}, "spec": {"nprocPerNode": "2"}}
    merged = custom.patch_namespaced_custom_object(*JOBS, "j", merge)
    assert merged["metadata"]["labels"] == {"c": "d"}
    operations = [
        {"op": "test", "path": "/spec/nprocPerNode", "value": "2"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "z"},
        {"op": "copy", "from": "/metadata/annotations/x~1y", "path": "/metadata/labels/e"},
        {"op": "move", "from": "/metadata/labels/c", "path": "/metadata/labels/f"},
        {"op": "remove", "path": "/spec/nprocPerNode"},
    ]
    # The client calls every patch of a custom resource a merge patch.
    url = f"{api_server.url}/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/j"
    headers = {"content-type": "application/json-patch+json"}
    found = httpx.patch(url, json=operations, headers=headers).json()
    assert found["metadata"]["annotations"] == {"x/y": "z"}
    assert found["metadata"]["labels"] == {"e": "z", "f": "d"}
    assert "nprocPerNode" not in found["spec"]


def test_a_strategic_patch_merges_lists_by_their_keys(core: kubernetes.CoreV1Api) -> None:
    containers = [{"name": name, "image": "x"} for name in ("a", "b")]
    core.create_namespaced_pod(
        "default", {"metadata": {"name": "p"}, "spec": {"containers": containers}}
    )
    core.patch_namespaced_pod(
        "p", "default", {"spec": {"containers": [{"name": "b", "image": "y"}]}}
    )
    for kind in ("Ready", "Initialized", "Ready"):
        condition = {"type": kind, "status": "True", "reason": kind}
        core.patch_namespaced_pod_status("p", "default", {"status": {"conditions": [condition]}})
    found = core.read_namespaced_pod("p", "default")
    assert [container.image for container in found.spec.containers] == ["x", "y"]
    assert [condition.type for condition in found.status.conditions] == ["Ready", "Initialized"]


def test_a_deletion_with_a_precondition_that_does_not_hold_conflicts(
    custom: kubernetes.CustomObjectsApi,
) -> None:
    custom.create_namespaced_custom_object(*JOBS, job("j"))
    options = kubernetes.V1DeleteOptions(preconditions=kubernetes.V1Preconditions(uid="other"))
    with pytest.raises(ApiException) as caught:
        custom.delete_namespaced_custom_object(*JOBS, "j", body=options)
    assert caught.value.status == 409
    done = custom.delete_namespaced_custom_object(*JOBS, "j")
    assert done["status"] == "Success"
    assert done["details"]["group"] == "kubeflow.org"


def test_a_collection_is_deleted_by_selector(custom: kubernetes.CustomObjectsApi) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        custom.create_namespaced_custom_object(*JOBS, job(name, labels={"app": app}))
    custom.delete_collection_namespaced_custom_object(*JOBS, label_selector="app=x")
    left = custom.list_namespaced_custom_object(*JOBS)
    assert [item["metadata"]["name"] for item in left["items"]] == ["b"]


def test_an_update_of_a_custom_resource_names_the_version_that_it_changes(
    custom: kubernetes.CustomObjectsApi,
) -> None:
    made = custom.create_namespaced_custom_object(*JOBS, job("j"))
    made["spec"]["nprocPerNode"] = "2"
    custom.replace_namespaced_custom_object(*JOBS, "j", made)
    with pytest.raises(ApiException) as stale:
        custom.replace_namespaced_custom_object(*JOBS, "j", made)
    with pytest.raises(ApiException) as unversioned:
        custom.replace_namespaced_custom_object(*JOBS, "j", job("j"))
    assert (stale.value.status, unversioned.value.status) == (409, 422)
    assert "resourceVersion" in unversioned.value.body


def test_native_fields_that_there_are_not_warn_or_are_refused(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    body = {"metadata": {"name": "a"}, "dat": {}}
    _, _, headers = core.create_namespaced_config_map_with_http_info("default", body)
    assert 'unknown field \\"dat\\"' in headers["Warning"]
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map(
            "default", {**body, "metadata": {"name": "b"}}, field_validation="Strict"
        )
    assert caught.value.status == 400
    assert "strict decoding error" in caught.value.body
    _, _, headers = core.create_namespaced_config_map_with_http_info(
        "default", {**body, "metadata": {"name": "c"}}, field_validation="Ignore"
    )
    assert "Warning" not in headers


def test_a_watch_of_another_clients_changes_gets_bookmarks_meanwhile(
    core: kubernetes.CoreV1Api, tmp_path: Any
) -> None:
    from harness.api_server import start_in_thread

    server = start_in_thread(tmp_path, bookmark_every_s=0.05)
    try:
        quick = kubernetes.CoreV1Api(config.new_client_from_config(str(server.kubeconfig)))
        stream = watch.Watch().stream(
            quick.list_namespaced_config_map, "default", allow_watch_bookmarks=True
        )
        event = next(stream)
        assert event["type"] == "BOOKMARK"
        assert event["raw_object"]["metadata"]["resourceVersion"] == str(server.api.revision)
    finally:
        server.stop()


def test_a_list_that_goes_on_as_a_watch_says_where_its_beginning_ends(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    core.create_namespaced_config_map("default", {"metadata": {"name": "a"}})
    query = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "1",
    }
    url = f"{api_server.url}/api/v1/namespaces/default/configmaps"
    with httpx.stream("GET", url, params=query) as answer:
        lines = answer.iter_lines()
        events = [json.loads(next(lines)) for _ in range(2)]
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    marks = events[1]["object"]["metadata"]["annotations"]
    assert marks == {"k8s.io/initial-events-end": "true"}


def test_metadata_alone_comes_where_no_more_is_asked_for(
    api_server: ThreadedServer, core: kubernetes.CoreV1Api
) -> None:
    core.create_namespaced_config_map("default", {"metadata": {"name": "a"}, "data": {"k": "v"}})
    url = f"{api_server.url}/api/v1/namespaces/default/configmaps"
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
    found = httpx.get(url, headers={"accept": accept}).json()
    assert found["kind"] == "PartialObjectMetadataList"
    assert found["items"][0]["metadata"]["name"] == "a"
    assert "data" not in found["items"][0]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/api/v1/configmaps", b"{}", 405),
        ("POST", "/api/v1/namespaces/default/pods/p", b"{}", 405),
        ("PUT", "/api/v1/namespaces/default/configmaps", b"{}", 405),
        ("GET", "/api/v1/pods/p", b"", 404),
        ("GET", "/api/v1/namespaces/default/pods/p/exec", b"", 404),
        ("GET", "/api/v2", b"", 404),
        ("GET", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs?limit=x", b"", 400),
        ("GET", "/api/v1/pods?resourceVersion=x", b"", 400),
        ("GET", "/api/v1/pods?resourceVersion=9999999", b"", 504),
        ("POST", "/api/v1/namespaces/default/configmaps", b" " * 3_200_000, 413),
        ("POST", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", b"{}", 400),
        ("PATCH", "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/p/scale", b"{}", 405),
        ("DELETE", "/api/v1/namespaces/default/pods/p?propagationPolicy=Sideways", b"", 422),
    ],
)
def test_what_there_is_not_or_may_not_be_is_refused(
    api_server: ThreadedServer, method: str, path: str, body: bytes, code: int
) -> None:
    assert httpx.request(method, api_server.url + path, content=body).status_code == code


def test_a_client_may_ask_who_it_is_and_what_it_may_do(core: kubernetes.CoreV1Api) -> None:
    access = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    allowed = kubernetes.AuthorizationV1Api(core.api_client).create_self_subject_access_review(
        access
    )
    assert allowed.status.allowed
    kubernetes.AuthenticationV1Api(core.api_client).create_self_subject_review({})


@pytest.mark.slow
def test_a_hundred_watchers_see_a_job_of_512_pods(api_server: ThreadedServer) -> None:
    """All see every pod, and connections that were closed are let go of."""
    pods, watchers = 512, 100
    counts: list[int] = []

    def follow() -> None:
        api = kubernetes.CoreV1Api(config.new_client_from_config(str(api_server.kubeconfig)))
        api.api_client.configuration.retries = 0
        seen = 0
        response = api.list_namespaced_pod(
            "default", label_selector="job=j", watch=True, _preload_content=False
        )
        for piece in response.stream(65536):
            seen += piece.count(b'"type":"ADDED"')
            if seen >= pods:
                break
        response.close()
        counts.append(seen)

    threads = [threading.Thread(target=follow) for _ in range(watchers)]
    for thread in threads:
        thread.start()

    def make(index: int) -> None:
        meta = {"name": f"j-{index}", "namespace": "default", "labels": {"job": "j"}}
        spec = {"containers": [{"name": "c", "image": "x"}]}
        api_server.api.create(POD, {"metadata": meta, "spec": spec})

    for index in range(pods):
        api_server.call(make, index)
    for thread in threads:
        thread.join(60)
    assert counts == [pods] * watchers
    table = api_server.api._table(POD)
    while api_server.call(lambda: len(table.watchers)):
        time.sleep(0.01)
