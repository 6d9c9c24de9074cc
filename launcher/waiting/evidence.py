"""What was seen of a job while it was waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.waiting.failed_runs import FailedRun


@dataclass(frozen=True)
class TimelineEntry:
    """One change of a job's state.

    Attributes:
        what: A word such as `created`, `queued`, `admitted`, `scheduled`, `running`, `restarted`,
            `ended` or `succeeded`.
    """

    time: datetime  # when it happened, in UTC; the cluster's time where it gives one
    what: str
    detail: str = ""  # the reason or message that came with it, or an empty string


@dataclass
class Evidence:
    """All that a waiting launcher has seen of one job.

    The operator may delete pods before it says Failed, so each is kept as last seen.

    Attributes:
        kind: The job's kind.
        job: The job's object as last seen.
        pods: Each pod's object as last seen, by pod name, deleted pods included. A pod that was
            recreated under the same name replaces the older one; the older is in `past_pods`.
        living: The names of the pods that were there when last seen; None where that is not known.
        past_pods: Objects of pods that were replaced by a newer pod of the same name.
        events: Event objects about the job and its pods, oldest first.
        logs: The last lines of each pod's log, by pod name.
        failed_runs: Each run of a container that trains which failed, by its pod's uid and its
            number, oldest first.
        timeline: The changes of state, oldest first.
        folder: The URI of the job's folder.
        notes: Things that the launcher could not do, such as read logs that it may not read.
    """

    kind: JobKind
    job: Object = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    living: set[str] | None = None
    past_pods: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    failed_runs: dict[tuple[str, int], FailedRun] = field(default_factory=dict)
    timeline: list[TimelineEntry] = field(default_factory=list)
    folder: str = ""
    notes: list[str] = field(default_factory=list)
