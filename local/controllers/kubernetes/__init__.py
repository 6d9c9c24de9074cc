"""Kubernetes' own controllers: scheduler, Deployments, autoscalers, claims, pod admission, node.

Also what every controller uses: a work queue, a recorder of events, and the free ports that stand
in for those of pods. It may import `local.apiserver` alone, and none of the other controllers.
"""
