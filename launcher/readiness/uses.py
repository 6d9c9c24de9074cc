"""What each component uses of a cluster: the controller behind it, and the permissions.

The permissions are those of `manifests/rbac.yaml` and `manifests/source`, which a step cannot read;
a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import (
    COSCHEDULING_POD_GROUP,
    INFERENCE_SERVICE,
    KNATIVE_REVISION,
    PYTORCHJOB,
    SERVING_RUNTIME,
    TENSORBOARD,
    TRAINJOB,
    VOLCANO_POD_GROUP,
    Kind,
)
from kfp_pytorch.launcher.jobs.kubeflowjob.kinds import KUBEFLOW_KINDS
from kfp_pytorch.launcher.kubernetes.api_errors import SOURCE_ROLE, STEPS_ROLE, Role

_EXPERIMENT = Kind("kubeflow.org", "v1beta1", "Experiment", "experiments")
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta1", "LocalQueue", "localqueues")


@dataclass(frozen=True)
class Part:
    """Something that an administrator installs.

    Attributes:
        title: Its name.
        kinds: The kinds that it brings.
        deployments: What is in the names of its Deployments; distributions add to them.
        namespace: Where it is installed by default.
        install: The command that installs it, or what else to do.
        any_version: Whether its kinds may be served in any version.
    """

    title: str
    kinds: tuple[Kind, ...]
    deployments: tuple[str, ...]
    namespace: str
    install: str
    any_version: bool = False


def _applied(source: str) -> str:
    option = "-k" if "?ref=" in source else "-f"
    return f"kubectl apply --server-side {option} '{source}'"


TRAINING_OPERATOR = Part(
    "Training Operator",
    (PYTORCHJOB,),
    ("training-operator",),
    "kubeflow",
    _applied("github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"),
)
TRAINER = Part(
    "Kubeflow Trainer",
    (TRAINJOB,),
    ("trainer-controller-manager", "jobset-controller"),
    "kubeflow-system",
    _applied("https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"),
)
_KSERVE = "https://github.com/kserve/kserve/releases/download/v0.20.0"
KSERVE = Part(
    "KServe",
    (INFERENCE_SERVICE, SERVING_RUNTIME),
    ("kserve-controller-manager",),
    "kserve",
    "Install cert-manager, which KServe needs; `kubectl create namespace kserve`; then "
    + _applied(f"{_KSERVE}/kserve-crds.yaml' -f '{_KSERVE}/kserve.yaml"),
)
KATIB = Part(
    "Katib",
    (_EXPERIMENT,),
    ("katib-controller", "katib-db-manager"),
    "kubeflow",
    _applied(
        "github.com/kubeflow/katib.git/manifests/v1beta1/installs/katib-standalone?ref=v0.19.0"
    ),
)
TENSORBOARDS = Part(
    "tensorboard-controller",
    (TENSORBOARD,),
    ("tensorboard-controller",),
    "kubeflow",
    "Install the TensorBoard controller of github.com/kubeflow/manifests.",
)
KUEUE = Part(
    "Kueue",
    (LOCAL_QUEUE,),
    ("kueue-controller-manager",),
    "kueue-system",
    _applied("https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml"),
    any_version=True,
)
PARTS = (TRAINING_OPERATOR, TRAINER, KSERVE, KATIB, TENSORBOARDS, KUEUE)


@dataclass(frozen=True)
class Rule:
    """A permission of a step.

    Attributes:
        group: The API group; empty for the core group.
        resource: The resource as RBAC names it, such as `pods/log`.
        verbs: The verbs, with blanks between them.
        without: What is less without it; empty where the step fails.
        kind: Only where the cluster has this kind; None for any cluster.
        role: The role that has it.
    """

    group: str
    resource: str
    verbs: str
    without: str = ""
    kind: Kind | None = None
    role: Role = STEPS_ROLE


@dataclass(frozen=True)
class Use:
    """What a component uses.

    Attributes:
        parts: What must be installed.
        rules: The permissions.
        optional: Whether the component does without the parts.
    """

    parts: tuple[Part, ...] = ()
    rules: tuple[Rule, ...] = ()
    optional: bool = False


_LESS = "a failure's message says less"
_OWN_POD = Rule("", "pods", "get", without="the run's id is not put on what the step makes")
_PODS = Rule("", "pods", "get list watch")
_EVIDENCE = (Rule("", "pods/log", "get", _LESS), Rule("", "events", "list", _LESS))
_GANGS = tuple(
    Rule(kind.group, kind.plural, "get create", "that scheduler gets no gang", kind)
    for kind in (VOLCANO_POD_GROUP, COSCHEDULING_POD_GROUP)
)
_CLAIMS = Rule(
    "", "persistentvolumeclaims", "get", "a claim that is not there is not found before the start"
)
_SOURCE = Rule(
    "", "configmaps", "create update delete", "no code can be given as source", role=SOURCE_ROLE
)
_RUN = "get watch create delete"
# What every job's step uses besides.
_OF_JOBS = (_PODS, *_EVIDENCE, _CLAIMS, _SOURCE, *_GANGS)
# Every step: the bootstrap reads the launcher, where the package has it in a ConfigMap.
LAUNCHER_RULE = Rule("", "configmaps", "get")
USES: dict[str, Use] = {
    "pytorch_job": Use(
        (TRAINING_OPERATOR,), (Rule("kubeflow.org", PYTORCHJOB.plural, _RUN), *_OF_JOBS)
    ),
    "train_job": Use(
        (TRAINER,),
        (
            Rule(TRAINJOB.group, TRAINJOB.plural, _RUN),
            Rule(TRAINJOB.group, "trainingruntimes", "get"),
            Rule(TRAINJOB.group, "clustertrainingruntimes", "get"),
            *_OF_JOBS,
        ),
    ),
    "kubeflow_job": Use(
        (TRAINING_OPERATOR,),
        (
            *(
                Rule(job.resource.group, job.resource.plural, _RUN, kind=job.resource)
                for job in KUBEFLOW_KINDS.values()
            ),
            *_OF_JOBS,
        ),
    ),
    "kserve_deploy": Use(
        (KSERVE,),
        (
            Rule("serving.kserve.io", "inferenceservices", "get create update"),
            Rule("apps", "deployments", "get"),
            Rule("serving.knative.dev", "revisions", "get", kind=KNATIVE_REVISION),
            _PODS,
            *_EVIDENCE,
            _CLAIMS,
        ),
    ),
    "kserve_rollout": Use(
        (KSERVE,), (Rule("serving.kserve.io", "inferenceservices", "get update"),)
    ),
    "kserve_predict": Use(),
    "canary_check": Use(),
    "compare_jobs": Use(),
    "metric_gate": Use(),
    "preflight": Use(),
    "register_model": Use(),
    "tensorboard": Use(
        (TENSORBOARDS,),
        (
            Rule(
                "tensorboard.kubeflow.org",
                "tensorboards",
                "get create",
                "the dashboard has no view",
                TENSORBOARD,
            ),
            _OWN_POD,
            _CLAIMS,
        ),
        optional=True,
    ),
}
