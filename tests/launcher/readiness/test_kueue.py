"""Whether Kueue manages the jobs at all, and the queue takes them."""

import pytest
from harness.api_server import start_in_thread
from harness.objects import ready

from kfp_pytorch.launcher.constants import CONFIG_MAP
from kfp_pytorch.launcher.readiness.parts import managed_frameworks
from kfp_pytorch.launcher.readiness.uses import LOCAL_QUEUE
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api

DEFINITION = {
    "kind": "CustomResourceDefinition",
    "spec": {
        "group": LOCAL_QUEUE.group,
        "names": {"kind": LOCAL_QUEUE.kind, "plural": LOCAL_QUEUE.plural},
        "versions": [{"name": LOCAL_QUEUE.version}],
    },
}


@pytest.fixture
def server(tmp_path):
    started = start_in_thread(tmp_path, api=Api(Registry([DEFINITION])))
    ready.fill(started)
    ready.deployment(started, "kueue-controller-manager", "kueue-system")
    data = {"controller_manager_config.yaml": ready.KUEUE_CONFIG.replace('  - "pod"\n', "")}
    metadata = ready.named("kueue-manager-config", "kueue-system")
    ready.make(started, CONFIG_MAP, {"metadata": metadata, "data": data})
    queue(started, "team", "True")
    queue(started, "off", "False")
    yield started
    started.stop()


def queue(server, name, active):
    condition = {"type": "Active", "status": active, "message": "Can't submit new workloads"}
    spec = {"clusterQueue": "all"}
    status = {"conditions": [condition]}
    ready.make(server, LOCAL_QUEUE, {"metadata": ready.named(name), "spec": spec, "status": status})


def test_the_shipped_configuration_leaves_pytorchjobs_out(bad, server):
    [found] = bad()
    assert (found.level, found.about) == ("warning", "Kueue")
    assert "does not manage kubeflow.org/pytorchjob" in found.what
    [found] = bad(queue="team")
    assert found.level == "error"
    assert "kubectl edit configmap kueue-manager-config -n kueue-system" in found.mend
    data = {"controller_manager_config.yaml": ready.KUEUE_CONFIG.replace("#  -", "  -")}
    ready.change(server, CONFIG_MAP, "kueue-manager-config", "kueue-system", data=data)
    assert bad(queue="team") == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope", "There is no LocalQueue default/nope"),
        ("off", "LocalQueue default/off takes no job: Can't submit new workloads"),
    ],
)
def test_a_queue_that_takes_no_job_is_named(bad, name, words):
    told = [each.what for each in bad(queue=name) if each.about == "queue"]
    assert len(told) == 1
    assert words in told[0]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (ready.KUEUE_CONFIG, {"pod", "batch/job", "jobset.x-k8s.io/jobset"}),
        ("integrations:\n    frameworks: [batch/job, 'pod']  # all\n", {"batch/job", "pod"}),
        ("integrations:\n  frameworks:\n  # - kubeflow.org/pytorchjob\nx: 1\n- pod\n", set()),
        ("", set()),
    ],
)
def test_the_frameworks_are_read_without_a_parser_of_yaml(config, found):
    extra = {"trainer.kubeflow.org/trainjob"} if config == ready.KUEUE_CONFIG else set()
    assert managed_frameworks(config) == found | extra
