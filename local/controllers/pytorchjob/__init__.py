"""The Training Operator for PyTorchJobs: webhook, pods and services, conditions.

`reconcile` is a pure function from a job and its pods to a plan; `controller` carries the plan out.
It may import `controllers.trainingoperator`, `controllers.kubernetes` and `local.apiserver`.
"""
