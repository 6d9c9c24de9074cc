"""How long a waiting launcher waits for what. All in seconds; no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits and intervals of a wait. 0 means no limit for the first four.

    Attributes:
        unavailability_budget: How long the job may be unavailable before the step gives up.
        watch_idle: How long a watch may bring neither event nor bookmark; with the read that
            follows, an end is seen within five minutes.
        pods_watch_lifetime: After how long the server is asked to end a watch of pods. The client's
            idle timeout is a tenth longer, so that it ends no quiet watch: many servers send no
            bookmarks, and the pods are read again with each change of the job.
        slow_interval: Time between reads of pods that nothing else has caused, where watches of
            them bring nothing.
        log_idle: How long a followed log may bring nothing before it is reopened; it doubles up to
            `pods_watch_lifetime` while that brings nothing either.
        quick_interval: The same for pods and events while not all pods are running; it doubles up
            to `progress_interval`.
        quota: How long a quota may go on counting a job that is gone, when it is replaced.
        final_status: How long the operator may take to report the job's end, once its first pod has
            ended.
        failed_pod: How long the operator may take to end a job of which a pod has failed that
            nothing restarts.
        missing_pods_interval: Time between reads of events while pods are missing: with
            `refusal_grace`, a lasting refusal ends the step within 30 s.
    """

    queue: float = 0.0  # how long the job may be suspended at a stretch
    start: float = 0.0  # how long, not counting the queue, until every pod runs
    run: float = 0.0  # how long the job may run, not counting the queue
    active: float = 0.0  # how long it may take in all since the operator started it
    acknowledge: float = 60.0  # how long until the operator writes a first condition
    kind_absent: float = 20.0  # how long the job's resource type may be unknown to the server
    unavailability_budget: float = 900.0
    poll: float = 30.0  # time between polls while watches break
    watch_idle: float = 290.0
    watch_lifetime: float = 1800.0  # after how long the server is asked to end a watch
    pods_watch_lifetime: float = 3600.0
    slow_interval: float = 1500.0
    log_idle: float = 900.0
    quick_interval: float = 5.0
    progress_interval: float = 300.0  # time between progress lines while nothing changes
    deletion: float = 300.0  # how long a deletion may take
    quota: float = 60.0
    final_status: float = 1800.0
    failed_pod: float = 60.0
    pull_grace: float = 120.0  # how long an image may fail to be pulled
    config_grace: float = 60.0  # how long a container may fail to be created
    refusal_grace: float = 10.0  # how long the operator may be refused a pod permanently
    missing_pods_interval: float = 15.0
    gather: float = 15.0  # how long the last look at pods, events and logs may take
