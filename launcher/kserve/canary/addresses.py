"""Where the canary and the stable revision are asked, each alone. No I/O.

Knative gives a tag an address: https://knative.dev/docs/serving/traffic-management/. Within the
cluster it is a Service `TAG-NAME` beside the service's own.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from kfp_pytorch.launcher.kserve.canary import spec
from kfp_pytorch.launcher.kserve.canary.state import PREDICTOR
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each


def of_tag(service: Object, tag: str) -> str:
    """Return the base URL of a tag, within the cluster; empty where there is none."""
    target = next((t for t in each(service, *PREDICTOR, "traffic") if t.get("tag") == tag), None)
    own = str(dig(service, *PREDICTOR, "address", "url") or "")
    if target is None:
        return ""
    return _with_host(own, f"{tag}-") if is_in_cluster(own) else str(target.get("url") or "")


def of_canary(service: Object, canary_service: Object | None) -> str:
    """Return the base URL of the canary in Standard mode, within the cluster.

    `canary_service`: its Service. An ExternalName leads to another host, as its name does to what
    resolves it.
    """
    own = str(dig(service, "status", "address", "url") or "")
    name = spec.deployment_name(str(dig(service, "metadata", "name")))
    if dig(canary_service, "spec", "type") == "ExternalName":
        port = next(iter(each(canary_service, "spec", "ports")), {}).get("port", 80)
        return f"http://{dig(canary_service, 'spec', 'externalName')}:{port}"
    if not is_in_cluster(own):
        return f"http://{name}.{dig(service, 'metadata', 'namespace')}.svc.cluster.local"
    parts = urlsplit(own)
    _, dot, rest = parts.netloc.partition(".")
    return urlunsplit(parts._replace(netloc=f"{name}{dot}{rest}"))


def is_in_cluster(url: str) -> bool:
    """Whether a URL's host is the name of a Service."""
    return ".svc" in (urlsplit(url).hostname or "")


def _with_host(url: str, prefix: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=prefix + parts.netloc))
