"""TrainJobs, which Kubeflow Trainer v2 runs by a training runtime.

May import `inputs`, `jobs.pods`, the readers of `kubernetes` and the root modules. No I/O.
"""
