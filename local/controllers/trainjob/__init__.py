"""Kubeflow Trainer for TrainJobs of the torch runtime: webhooks, pods and a service, status.

What the Trainer makes on a cluster, a JobSet and its Job, is no object here: the pods are the
TrainJob's own. `reconcile` is a pure function from a job and its pods to a plan; `controller`
carries the plan out. It may import `controllers.kubernetes` and `local.apiserver`.
"""
