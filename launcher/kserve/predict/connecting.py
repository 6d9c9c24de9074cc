"""Makes the client of a target."""

from __future__ import annotations

from collections.abc import Mapping

from kfp_pytorch.launcher.kserve.predict.clients.grpc import GrpcClient
from kfp_pytorch.launcher.kserve.predict.clients.http import HttpClient
from kfp_pytorch.launcher.kserve.predict.clients.server import Server, token_source
from kfp_pytorch.launcher.kserve.predict.inputs import PredictInputs
from kfp_pytorch.launcher.kserve.predict.target import Target


def connect(
    target: Target, given: PredictInputs, environ: Mapping[str, str]
) -> HttpClient | GrpcClient:
    """Make a client, to be used in a `with`.

    `environ`: the variables of the step. Raises InputError: the token, or a CA file, is not there
    or is none, or gRPC cannot send a header. Raises CannotInstall: there is no gRPC.
    """
    server = Server(
        url=target.url,
        headers=given.headers,
        token=token_source(given.token_env, given.token_file, environ),
        ca_file=given.ca_file,
        request_timeout=given.request_timeout,
        connections=given.concurrency,
    )
    return GrpcClient(server) if target.protocol == "grpc" else HttpClient(server)
