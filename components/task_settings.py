"""Which settings of a KFP task are passed on to the job that the task starts."""

# The settings apply to the training pods. Only the environment applies to the step's own pod
# too: behind a proxy it needs its variables. It never asks for the accelerators.
TASK_SETTINGS = {
    "RESOURCES": False,
    "KUBERNETES_TOLERATIONS": False,
    "KUBERNETES_NODE_SELECTOR": False,
    "KUBERNETES_AFFINITY": False,
    "KUBERNETES_VOLUMES": False,
    "ENV": True,
}
