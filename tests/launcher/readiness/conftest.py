import pytest
from harness.api_server import start_in_thread
from harness.objects import ready

from kfp_pytorch.launcher.kubernetes import client, credentials
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.readiness.examine import examine
from kfp_pytorch.launcher.readiness.needs import parse_needs
from kfp_pytorch.launcher.readiness.survey import Survey


@pytest.fixture
def server(tmp_path):
    """A cluster on which a run would work."""
    started = start_in_thread(tmp_path)
    ready.fill(started)
    yield started
    started.stop()


@pytest.fixture
def look(server):
    """Examines the cluster as an administrator, or as a step; gives the findings back."""

    def found(*, kubeconfig=None, account=ready.ACCOUNT, launcher=ready.LAUNCHER, **inputs):
        path = str(kubeconfig or server.kubeconfig)

        def load():
            return credentials.load({"KUBECONFIG": path})

        policy = RetryPolicy(unavailability_budget=2.0, first_contact=2.0)
        where = inputs.get("namespace", "")
        kube = client.connect(where, load_credentials=load, policy=policy)
        survey = Survey(kube, account, sleep=lambda _: None)
        inputs.setdefault("components", ["pytorch_job", "kserve_deploy"])
        return examine(survey, parse_needs(**inputs), launcher)

    return found


@pytest.fixture
def bad(look):
    """What is not ok."""

    def found(**inputs):
        return [each for each in look(**inputs) if each.level != "ok"]

    return found
