"""A trace of some steps on some ranks, on request, that Perfetto or TensorBoard opens."""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_pytorch.training.arguments.profile_request import ProfileRequest
from kfp_pytorch.training.errors import StorageError

if TYPE_CHECKING:
    from kfp_pytorch.training.parallel.process_group import World
    from kfp_pytorch.training.storage.job_folder import Folder

LOG = logging.getLogger("kfp_pytorch.training")
FOLDER = "profile"


class Profiler:
    """Starts and ends the trace at the requested steps; does nothing on other ranks.

    A thread writes the trace, which takes as long as many steps.
    """

    def __init__(self, request: ProfileRequest | None, world: World, folder: Folder) -> None:
        """Waits for the first step. The trace is written to `profile/` in the job's folder."""
        wanted = request is not None and (request.ranks is None or world.rank in request.ranks)
        self._request = request if wanted else None
        if world.is_main and request is not None:
            _warn_if_no_rank(request, world.size)
        self._rank = world.rank
        self._on_gpu = world.device.type == "cuda"
        self._folder = folder
        self._trace: Any = None
        self._writer: threading.Thread | None = None

    def before(self, step: int) -> None:
        """A step begins."""
        request = self._request
        if request is None or self._trace is not None:
            return
        if step > request.last:
            LOG.warning(
                "steps %s to %s are not traced: the job is at step %s",
                *(request.first, request.last, step),
            )
            self._request = None
        elif step >= request.first:
            self._start()

    def after(self, step: int) -> None:
        """A step has ended. After the last one a thread writes the trace."""
        request = self._request
        if self._trace is not None and request is not None and step >= request.last:
            self._finish(request)
            self._trace, self._request = None, None

    def close(self) -> None:
        """Waits until the trace is written; warns if training ended before the last step."""
        if self._request is not None:
            LOG.warning(
                "steps %s to %s are not traced: training ended before step %s",
                *(self._request.first, self._request.last, self._request.last),
            )
        if self._writer is not None:
            self._writer.join()

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._trace = profile(activities=activities, record_shapes=True)
        self._trace.start()

    def _finish(self, request: ProfileRequest) -> None:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        self._trace.stop()
        self._writer = threading.Thread(
            target=self._write, args=(self._trace, request), name="profile", daemon=True
        )
        self._writer.start()

    def _write(self, trace: Any, request: ProfileRequest) -> None:
        name = f"{FOLDER}/rank{self._rank}.steps{request.first}-{request.last}.pt.trace.json.gz"
        try:
            with tempfile.TemporaryDirectory(prefix="kfp-pytorch-profile-") as scratch:
                path = Path(scratch) / "trace.json.gz"
                trace.export_chrome_trace(str(path))
                with self._folder.writer(name) as file:
                    file.write(path.read_bytes())
        except (OSError, StorageError) as error:
            # A trace must not end training.
            LOG.warning("the trace is lost: %s", error)
            return
        LOG.info("wrote the trace %s/%s", self._folder.uri, name)


def _warn_if_no_rank(request: ProfileRequest, ranks: int) -> None:
    """Warns if no rank is traced; an elastic job may have more ranks later."""
    if request.ranks is not None and min(request.ranks) >= ranks:
        LOG.warning(
            "nothing is traced: --profile-ranks is %s, and ranks go from 0 to %s",
            *(", ".join(map(str, sorted(request.ranks))), ranks - 1),
        )
