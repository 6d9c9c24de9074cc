"""Where requests go: the protocol and its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from kfp_pytorch.launcher.errors import InputError

# What follows a server's URL, with the model's name in it.
_V1 = re.compile(r"(?P<base>.*)/v1/models/(?P<name>[^/]+):predict")
_V2 = re.compile(r"(?P<base>.*)/v2/models/(?P<name>[^/]+)(?:/versions/[^/]+)?/infer")
# KServe's language model runtimes put /openai before OpenAI's own paths; vLLM alone does not.
_OPENAI = re.compile(r"(?P<base>.*/v1)(?:/chat)?/completions")
_OPENAI_BASE = re.compile(r"(?P<base>.*/v1)/?")


@dataclass(frozen=True)
class Target:
    """A model on a server.

    Attributes:
        url: The exact URL of V1 or V2; the OpenAI protocol's, up to /v1; of gRPC scheme and host.
        model_name: Empty where the URL alone says it.
    """

    protocol: str
    url: str
    model_name: str


def resolve(url: str, protocol: str, model_name: str) -> Target:
    """Find the protocol, the URL and the model's name, of which one may say another.

    A URL that is the exact one of another protocol is changed into that of the wanted one. Raises
    InputError: they do not say enough, or contradict each other.
    """
    parts = urlsplit(url)
    exact, base, named = _of_path(parts.path)
    protocol = protocol or exact
    if not protocol:
        raise InputError(
            f"url is {url!r}, which does not say which protocol it speaks: set protocol, or give "
            "the exact URL of predictions, which ends in /v1/models/NAME:predict, as kserve_deploy "
            "gives it."
        )
    if protocol == exact and protocol in ("v1", "v2"):
        if model_name and named and model_name != named:
            raise InputError(f"model_name is {model_name!r}, but url is of the model {named!r}.")
        return Target(protocol, url, named)
    if parts.query or parts.fragment:
        raise InputError(f"url is {url!r}; it may have no ? and # unless it is the exact URL.")
    name = model_name or unquote(named)
    if not name and protocol != "openai":
        raise InputError(
            f"model_name is not set, and url, {url!r}, does not have it: give the name of the "
            "model, which is the InferenceService's where kserve_deploy made it."
        )
    return Target(protocol, _url(protocol, urlunsplit((*parts[:2], base, "", "")), name), name)


def _of_path(path: str) -> tuple[str, str, str]:
    """What a path is the exact one of, what comes before that, and the model's name in it."""
    for protocol, pattern in (("v1", _V1), ("v2", _V2)):
        if match := pattern.fullmatch(path):
            return protocol, match["base"], match["name"]
    if match := _OPENAI.fullmatch(path):
        return "openai", match["base"], ""
    if path.endswith(":predict"):
        return "v1", "", ""
    return "", path.rstrip("/"), ""


def _url(protocol: str, base: str, name: str) -> str:
    if protocol == "grpc":
        if urlsplit(base).path:
            raise InputError(
                f"url is {base!r}; gRPC knows no paths: give scheme, host and port. A gateway "
                "tells services apart by the header Host."
            )
        return base
    if protocol == "openai":
        return base if _OPENAI_BASE.fullmatch(urlsplit(base).path) else f"{base}/openai/v1"
    model = quote(name, safe="")
    if protocol == "v1":
        return f"{base}/v1/models/{model}:predict"
    return f"{base}/v2/models/{model}/infer"
