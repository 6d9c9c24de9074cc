"""What to do about what a model server says."""

from __future__ import annotations

from urllib.parse import urlsplit

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.kserve.rollout import port_forward_advice


def advice(said: str, url: str = "") -> str:
    """Return a line that says what to do about what a server said, or an empty string."""
    parts = urlsplit(url)
    service, _, rest = (parts.hostname or "").partition(".")
    unreachable = patterns.advice("unreachable", said)
    if unreachable and ".svc" in f".{rest}":
        predictor = f"{service.removesuffix('-predictor')}-predictor"
        return f"\n{port_forward_advice(predictor, rest.partition('.')[0], parts.path)}"
    found = patterns.advice("prediction", said) or unreachable
    return f"\n{found}" if found else ""
