"""Names and versions that more than one part of the project agrees on.

A label, annotation or environment name of the project's own appears here once. Training, serving
and `kfp_pytorch.local` may import this module of the launcher and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kfp_pytorch import __version__


@dataclass(frozen=True)
class Kind:
    """A resource type of the Kubernetes API."""

    group: str  # the API group; empty for the core group
    version: str  # the API version, such as `v1`
    kind: str  # the kind, such as `PyTorchJob`
    plural: str  # the resource's name in a URL, such as `pytorchjobs`
    # Whether its objects are in namespaces.
    namespaced: bool = field(default=True, compare=False)

    @property
    def api_version(self) -> str:
        """The value of `apiVersion` in an object of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version


POD = Kind("", "v1", "Pod", "pods")
EVENT = Kind("", "v1", "Event", "events")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SERVICE = Kind("", "v1", "Service", "services")
CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGE = Kind("", "v1", "LimitRange", "limitranges")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
SECRET = Kind("", "v1", "Secret", "secrets")
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
PYTORCHJOB = Kind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")
TFJOB = Kind("kubeflow.org", "v1", "TFJob", "tfjobs")
MPIJOB = Kind("kubeflow.org", "v1", "MPIJob", "mpijobs")
XGBOOSTJOB = Kind("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs")
JAXJOB = Kind("kubeflow.org", "v1", "JAXJob", "jaxjobs")
PADDLEJOB = Kind("kubeflow.org", "v1", "PaddleJob", "paddlejobs")
TRAINJOB = Kind("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
TRAINING_RUNTIME = Kind("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes")
CLUSTER_TRAINING_RUNTIME = Kind(
    "trainer.kubeflow.org",
    "v1alpha1",
    "ClusterTrainingRuntime",
    "clustertrainingruntimes",
    namespaced=False,
)
INFERENCE_SERVICE = Kind("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices")
KNATIVE_REVISION = Kind("serving.knative.dev", "v1", "Revision", "revisions")
KEDA_SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
SERVING_RUNTIME = Kind("serving.kserve.io", "v1alpha1", "ServingRuntime", "servingruntimes")
CLUSTER_SERVING_RUNTIME = Kind(
    "serving.kserve.io",
    "v1alpha1",
    "ClusterServingRuntime",
    "clusterservingruntimes",
    namespaced=False,
)
TENSORBOARD = Kind("tensorboard.kubeflow.org", "v1alpha1", "Tensorboard", "tensorboards")
# A gang of pods, of Volcano's own and of scheduler-plugins' coscheduling.
VOLCANO_POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
COSCHEDULING_POD_GROUP = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
WORKFLOW = Kind("argoproj.io", "v1alpha1", "Workflow", "workflows")

PREFIX = "kfp-pytorch"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
RUN_ID_LABEL = f"{PREFIX}/run-id"
STEP_ID_LABEL = f"{PREFIX}/step-id"
SPEC_HASH_LABEL = f"{PREFIX}/spec-hash"
ATTEMPT_ANNOTATION = f"{PREFIX}/attempt"
MODEL_URI_ANNOTATION = f"{PREFIX}/model-uri"

# The label that KFP puts on the pod of every step.
KFP_RUN_ID_LABEL = "pipeline/runid"
KFP_POD_NAME_ENV = "KFP_POD_NAME"
KFP_POD_UID_ENV = "KFP_POD_UID"

# The operator's webhook demands this name of the container that trains.
PYTORCH_CONTAINER = "pytorch"
# What the operator adds to workers: it waits for the first node's name.
INIT_CONTAINER = "init-pytorch"
# What it adds to an MPIJob's launcher: it waits for the workers, and brings kubectl.
KUBECTL_CONTAINER = "kubectl-delivery"
# The name that the Trainer gives the container that trains, and the job of its pods.
NODE_CONTAINER = "node"

OUTPUT_ENV = "KFP_PYTORCH_OUTPUT"
RESUME_FROM_ENV = "KFP_PYTORCH_RESUME_FROM"
# The URI or path of a job's first data set; and, as JSON, of each with its metadata, by name.
DATASET_ENV = "KFP_PYTORCH_DATASET"
DATASETS_ENV = "KFP_PYTORCH_DATASETS"
TERMINATION_LOG_ENV = "KFP_PYTORCH_TERMINATION_LOG"
# Of a step: set where a job that was made from other inputs is replaced, not adopted.
REPLACE_OTHER_ENV = "KFP_PYTORCH_REPLACE_OTHER_INPUTS"
TERMINATION_LOG_PATH = "/dev/termination-log"
# The kubelet cuts each message to 12,288 bytes over the pod's containers.
TERMINATION_MESSAGE_LIMIT = 2048
# Of what training says in that message, and of the `model.json` that it exports.
MESSAGE_VERSION = 1
MODEL_VERSION = 1
# How a script reports its result; told where one did not.
SCRIPT_GUIDE = "help(script)"
# What KFP adds to the metadata of an artifact.
KFP_METADATA = ("display_name", "store_session_info")
# The file of an export that describes it.
MODEL_FILE = "model.json"
# Names the folder of claims, NAMESPACE/CLAIM below it, to a step that can read them.
CLAIMS_ENV = "KFP_PYTORCH_CLAIMS"
OUTPUT_MOUNT = "/mnt/kfp-pytorch/output"
RESUME_MOUNT = "/mnt/kfp-pytorch/resume"
DATASET_MOUNT = "/mnt/kfp-pytorch/dataset"
SOURCE_MOUNT = "/mnt/kfp-pytorch/source"
MODEL_MOUNT = "/mnt/models"
CREDENTIALS_MOUNT = "/var/run/secrets/kfp-pytorch"
# The file's name in a Secret that KServe's storage initializer also takes.
GCS_CREDENTIALS_PATH = f"{CREDENTIALS_MOUNT}/gcloud-application-credentials.json"
# Patterns to the clients of object stores, which would delete what others wrote.
BUCKET_PATTERNS = frozenset("*?[")

# modelFormat of what training exports; KServe would give `pytorch` to TorchServe.
MODEL_FORMAT = "kfp-pytorch"
# The folder of an export that is a model repository of Triton.
TRITON_FOLDER = "triton"
DEFAULT_OUTPUT_URI = "pvc://kfp-pytorch"
# Tells the predictor where to listen: nothing of a local cluster is seen outside.
SERVING_HOST_ENV = "KFP_PYTORCH_SERVING_HOST"

# Built by `make images`; no registry holds them.
IMAGE_TAG = f"{__version__}-make-images"
LAUNCHER_IMAGE = f"kfp-pytorch-launcher:{IMAGE_TAG}"
TRAINING_IMAGE = f"kfp-pytorch-training:{IMAGE_TAG}"
SERVING_IMAGE = f"kfp-pytorch-serving:{IMAGE_TAG}"

# 128 + SIGTERM.
EXIT_TERMINATED = 143
