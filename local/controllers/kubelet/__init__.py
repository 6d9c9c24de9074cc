"""The kubelet: runs the pods that are bound to this machine as processes and writes their status.

From a pod's spec come volumes, variables and commands (`volumes`, `environment`, `rewriting`,
`container_config`); `process` runs one process, `container` restarts it, `pod_worker` orders the
containers of a pod, and `pod_status` is the pure function from their states to a status. It may
import `controllers.kubernetes`, `local.apiserver` and what guards processes.
"""
