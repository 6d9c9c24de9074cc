"""What TensorBoard's HPARAMS tab reads: a job's arguments beside its results.

The event's contents are those of tensorboard's own `hparams.summary_v2`, which cannot be imported
without TensorFlow. TensorBoard takes the first word on each: so the arguments are those of a job's
first start, and the end is told only once training has finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from google.protobuf import struct_pb2
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

Value = str | bool | int | float


def start(job: str, arguments: Mapping[str, Value], results: Iterable[str]) -> Summary:
    """What a job starts with.

    Args:
        job: What tells it from others that the same TensorBoard shows.
        arguments: Its arguments by name.
        results: The names of the scalars to show beside them.

    Returns:
        The summary to write.
    """
    infos = [api_pb2.HParamInfo(name=name, type=_type(value)) for name, value in arguments.items()]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag) for tag in results
    ]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=metrics)
    session = plugin_data_pb2.SessionStartInfo(group_name=job, start_time_secs=time.time())
    for name, value in arguments.items():
        session.hparams[name].CopyFrom(_value(value))
    return Summary(
        value=[
            _record(
                metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment)
            ),
            _record(
                metadata.SESSION_START_INFO_TAG,
                plugin_data_pb2.HParamsPluginData(session_start_info=session),
            ),
        ]
    )


def end() -> Summary:
    """That the job has finished; the results are its last scalars."""
    session = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time()
    )
    data = plugin_data_pb2.HParamsPluginData(session_end_info=session)
    return Summary(value=[_record(metadata.SESSION_END_INFO_TAG, data)])


def _record(tag: str, data: plugin_data_pb2.HParamsPluginData) -> Summary.Value:
    about = metadata.create_summary_metadata(data)
    return Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)


def _type(value: Value) -> int:
    if isinstance(value, bool):
        return int(api_pb2.DATA_TYPE_BOOL)
    kind = api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64
    return int(kind)


def _value(value: Value) -> struct_pb2.Value:
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    return struct_pb2.Value(number_value=float(value))
