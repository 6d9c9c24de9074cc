"""The Training Operator for MPIJobs: pods and what they need, conditions, and what is refused.

`reconcile` is a pure function from a job and what it owns to a plan; `controller` carries the plan
out. It may import `controllers.trainingoperator`, `controllers.kubernetes` and `local.apiserver`.
"""
