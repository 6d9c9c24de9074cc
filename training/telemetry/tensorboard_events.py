"""TensorBoard's event files, without torch's SummaryWriter, which takes seconds to import."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.storage.job_folder import Folder, LocalFolder
from kfp_pytorch.training.telemetry.curves import BOARD_FOLDER

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

LOG = logging.getLogger("kfp_pytorch.training")
_DT_STRING = 7
# As often as tensorboard's own writer flushes to a local file.
_UPLOAD_SECONDS = 120.0
_HPARAM_TYPES = {bool: api_pb2.DATA_TYPE_BOOL, str: api_pb2.DATA_TYPE_STRING}


class TensorBoardWriter:
    """The one writer of a job's `tensorboard/` folder.

    An object store cannot append to a file, so there the file is written locally and uploaded whole
    at each flush, and every two minutes, as an epoch may last for days.
    """

    def __init__(self, folder: Folder, done: int) -> None:
        """Starts a new event file; `done`: the steps that were done before this process.

        TensorBoard drops what an earlier process wrote of later ones.
        """
        self._folder = folder
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if isinstance(folder, LocalFolder):
            path = folder.path / BOARD_FOLDER
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="kfp-pytorch-tensorboard-")
            path = Path(self._scratch.name)
        # Random: containers of one name have equal process ids, and may restart within a second.
        suffix = f".{os.urandom(4).hex()}"
        # Checkpoints flush in their own thread: an older file must not be uploaded last.
        self._uploading = threading.Lock()
        self._uploaded = time.monotonic()
        self._closed = False
        self._local = LocalFolder(path)
        with self._local.explained("write", ""):
            self._writer = EventFileWriter(str(path), filename_suffix=suffix)
        self._path = next(path.glob(f"*{suffix}"))
        first = done + 1 if done else 0
        self._write(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes a value to each of these scalars."""
        summary = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=summary)))
        if self._scratch is not None and time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            try:
                self.flush()
            except StorageError as error:
                # The next flush uploads all of it.
                LOG.warning("the newest reports are not in TensorBoard yet: %s", error)

    def images(self, tag: str, step: int, images: Tensor, limits: tuple[float, float]) -> None:
        """Writes images, [samples, channels, height, width], black to white by `limits`."""
        from PIL import Image

        low, high = limits
        scaled = ((images.float() - low) / max(high - low, 1e-9) * 255).clamp(0, 255).byte()
        grid = scaled.permute(2, 0, 3, 1).flatten(1, 2).squeeze(-1)
        self.picture(tag, step, Image.fromarray(grid.cpu().numpy()))

    def picture(self, tag: str, step: int, picture: Image.Image) -> None:
        """Writes a picture."""
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        image = Summary.Image(
            height=picture.height,
            width=picture.width,
            colorspace=len(picture.getbands()),
            encoded_image_string=buffer.getvalue(),
        )
        self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)])))

    def text(self, tag: str, text: str) -> None:
        """Writes a text in Markdown."""
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        tensor = TensorProto(
            dtype=_DT_STRING,
            string_val=[text.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        about = SummaryMetadata(plugin_data=plugin)
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=about, tensor=tensor)
        self._write(Event(step=0, summary=Summary(value=[value])))

    def hyperparameters(
        self, job: str, arguments: Mapping[str, Any], results: Sequence[str]
    ) -> None:
        """Writes what the HPARAMS tab compares jobs by: the arguments that are plain values."""
        plain = {k: v for k, v in arguments.items() if isinstance(v, str | bool | int | float)}
        experiment = api_pb2.Experiment(
            hparam_infos=[
                api_pb2.HParamInfo(
                    name=name, type=_HPARAM_TYPES.get(type(value), api_pb2.DATA_TYPE_FLOAT64)
                )
                for name, value in plain.items()
            ],
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag)
                for tag in results
            ],
        )
        values = plugin_data_pb2.HParamsPluginData(experiment=experiment)
        summary = _hparams(metadata.EXPERIMENT_TAG, values)
        summary.value.extend(summary_v2.hparams_pb(plain, trial_id=job).value)
        self._write(Event(summary=summary))

    def end(self) -> None:
        """Writes that the job has finished; its results are its last scalars."""
        end = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time()
        )
        values = plugin_data_pb2.HParamsPluginData(session_end_info=end)
        self._write(Event(summary=_hparams(metadata.SESSION_END_INFO_TAG, values)))

    def flush(self) -> None:
        """Makes all that was written readable; any thread may call it. Raises StorageError."""
        with self._uploading:
            if self._closed:
                return
            with self._local.explained("write", self._path.name):
                self._writer.flush()
            if self._scratch is not None:
                self._uploaded = time.monotonic()
                with self._folder.writer(f"{BOARD_FOLDER}/{self._path.name}") as file:
                    file.write(self._path.read_bytes())

    def close(self) -> None:
        """Flushes and ends. Raises StorageError: if the last reports cannot be written."""
        self.flush()
        with self._uploading:
            self._closed = True
            self._writer.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        # It raises the error of its thread since the last call.
        with self._local.explained("write", self._path.name):
            self._writer.add_event(event)


def _hparams(tag: str, values: plugin_data_pb2.HParamsPluginData) -> Summary:
    about = metadata.create_summary_metadata(values)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])
