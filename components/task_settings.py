"""Which settings of a KFP task are handed over to the job that the task starts."""

from kfp import dsl

# The settings apply to the training pods. Only the environment applies to the step's own pod
# too: behind a proxy it needs its variables. It never asks for the accelerators.
TASK_SETTINGS = (
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.RESOURCES),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_TOLERATIONS),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_AFFINITY),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_VOLUMES),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.ENV, apply_to_task=True),
)
