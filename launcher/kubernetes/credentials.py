"""The API server's address and credentials: from a kubeconfig, or a pod's service account.

Exec plugins and auth providers are left to the official client. It is imported nowhere else, as
that takes 0.3 s and 40 MB.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import os
import re
import ssl
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kfp_pytorch.launcher.errors import StepError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PARTS = ("clusters", "contexts", "users")
_DEFAULT_KUBECONFIG = "~/.kube/config"
_IN_HEADER = re.compile(r"[\x21-\x7e]*")
_IN_URL = re.compile(r"\S+")


class NoCluster(StepError):
    """There is neither a usable kubeconfig nor a service account."""


@dataclass(frozen=True)
class Credentials:
    """How to reach an API server.

    Attributes:
        authorization: The `Authorization` header's value, or empty. Never shown.
        tls: The TLS settings; None for plain HTTP.
        server_name: The name to verify the server's certificate against; empty: the URL's host.
    """

    server: str  # the server's URL, without a slash at the end
    namespace: str  # the namespace of the credentials
    source: str  # where they come from, for messages
    account: str = ""  # the account, as far as they name it; or empty
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str = ""
    proxy: str = field(default="", repr=False)  # a proxy's URL, or empty

    @property
    def address(self) -> str:
        """The server for messages: a path or a user in its URL may be a secret."""
        parts = urlsplit(self.server)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def load(environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Credentials:
    """Reads the credentials from disk.

    KUBECONFIG comes first, where it names a file (a local run may itself run in a pod), then the
    pod's service account, then the default kubeconfig. In a step's pod it may be set for the
    training pods, which have such a file.

    `account`: the folder that the service account is mounted in. Raises NoCluster: there are none,
    or they cannot be read.
    """
    named = environ.get("KUBECONFIG", "")
    in_pod = environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file()
    if named and (_files(named) or not in_pod):
        return _from_kubeconfig(named, f"KUBECONFIG={named}")
    if in_pod:
        return _from_service_account(environ, account)
    if Path(_DEFAULT_KUBECONFIG).expanduser().is_file():
        return _from_kubeconfig(_DEFAULT_KUBECONFIG, _DEFAULT_KUBECONFIG)
    raise NoCluster(
        "No cluster: KUBECONFIG is not set, this is not a pod with a service account "
        f"({account}/token), and there is no {_DEFAULT_KUBECONFIG}. Set KUBECONFIG to a "
        "kubeconfig file, or start a local cluster with `kfp-pytorch local up`."
    )


def _from_service_account(environ: Mapping[str, str], account: Path) -> Credentials:
    host = environ["KUBERNETES_SERVICE_HOST"].strip()
    port = environ.get("KUBERNETES_SERVICE_PORT", "443").strip()
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        token = _sendable((account / "token").read_text())
        tls = _tls(server, ca_file=str(account / "ca.crt"))
        place = account / "namespace"
        namespace = place.read_text().strip() if place.is_file() else "default"
    except (OSError, ssl.SSLError, ValueError) as error:
        raise NoCluster(f"The service account in {account} cannot be used: {error}") from error
    return Credentials(
        server, namespace, "the pod's service account", _subject(token), f"Bearer {token}", tls,
        proxy=_proxy(server),
    )  # fmt: skip


def _from_kubeconfig(paths: str, source: str) -> Credentials:
    config = _merged(paths, source)
    name = config["current-context"]
    context, _ = _named(config, "contexts", name, source)
    cluster, beside = _named(config, "clusters", context.get("cluster", ""), source)
    who = context.get("user", "")
    user, folder = _named(config, "users", who, source) if who else ({}, Path())
    source = f"{source}, context {name!r}"
    if "exec" in user or "auth-provider" in user:
        return _by_official_client(paths, context, source)
    server = _address(cluster.get("server"), source)
    try:
        return Credentials(
            server=server,
            namespace=str(context.get("namespace") or "default"),
            source=source,
            account=_subject(_token(user, folder)) or who,
            authorization=_authorization(user, folder),
            tls=_kubeconfig_tls(server, cluster, beside, user, folder),
            server_name=cluster.get("tls-server-name", ""),
            proxy=_usable(cluster["proxy-url"]) if cluster.get("proxy-url") else _proxy(server),
        )
    except (OSError, ssl.SSLError, ValueError, TypeError) as error:
        raise NoCluster(f"The kubeconfig ({source}) cannot be used: {error}") from error


def _address(server: Any, source: str) -> str:
    """A server's URL, with the scheme that kubectl adds, and without a slash at its end."""
    written = str(server or "").strip()
    whole = written if "://" in written else f"http://{written}"
    try:
        parts = urlsplit(whole)
        host = (parts.hostname or "").encode("idna")
        usable = bool(host) and parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _IN_URL.fullmatch(whole):
        raise NoCluster(
            f"The kubeconfig ({source}) has the server {written!r}, which cannot be asked; it must "
            "be http:// or https:// and a host."
        )
    return f"{parts.scheme}://{whole.partition('://')[2]}".rstrip("/")


def _merged(paths: str, source: str) -> dict[str, Any]:
    """Merges the files of a KUBECONFIG list; as in kubectl, the first entry of a name is used.

    Paths in a file are relative to it: each entry keeps its folder.
    """
    merged: dict[str, Any] = {part: [] for part in _PARTS}
    for file in _files(paths):
        content = _content(file)
        for part in _PARTS:
            merged[part] += [{**each, "folder": file.parent} for each in content.get(part) or []]
        if content.get("current-context"):
            merged.setdefault("current-context", content["current-context"])
    if not merged.get("current-context"):
        raise NoCluster(
            f"The kubeconfig ({source}) does not exist or names no current-context. Set KUBECONFIG "
            "to a file that does, or start a local cluster with `kfp-pytorch local up`."
        )
    return merged


def _files(paths: str) -> list[Path]:
    """The files of a KUBECONFIG list that are there."""
    named = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    return [file for file in named if file.is_file()]


def _content(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise NoCluster(
            f"The kubeconfig {file} cannot be read: PyYAML is not installed, as in a step's image. "
            "A step uses its pod's service account: leave KUBECONFIG unset, or set it for the "
            "training pods alone, by the input env."
        ) from error
    try:
        # From a stream: then what YAML says of a mistake names the file.
        with file.open(encoding="utf-8") as stream:
            content = yaml.safe_load(stream) or {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise NoCluster(f"The kubeconfig {file} cannot be read: {error}") from error
    parts = [content.get(part) or [] for part in _PARTS] if isinstance(content, dict) else [None]
    for part in parts:
        if not isinstance(part, list) or not all(isinstance(each, dict) for each in part):
            raise NoCluster(f"{file} is no kubeconfig: it has no lists of {', '.join(_PARTS)}.")
    return dict(content)


def _named(
    config: Mapping[str, Any], part: str, name: str, source: str
) -> tuple[dict[str, Any], Path]:
    """An entry's content, and the folder of the file that has it."""
    for entry in config[part]:
        if entry.get("name") == name:
            content = entry.get(part.removesuffix("s"))
            if not isinstance(content, dict):
                kind = part.removesuffix("s")
                raise NoCluster(f"The kubeconfig ({source}) has no {kind!r} of {name!r}.")
            return content, entry["folder"]
    raise NoCluster(f"The kubeconfig ({source}) has no {name!r} under {part!r}.")


def _token(user: Mapping[str, Any], folder: Path) -> str:
    if user.get("tokenFile"):
        return _sendable(Path(folder, user["tokenFile"]).read_text())
    return _sendable(str(user.get("token") or ""))


def _sendable(token: str) -> str:
    """A token without the line break at the end of a file.

    Raises ValueError: no header can have it; the token is not shown.
    """
    whole = token.strip()
    if not _IN_HEADER.fullmatch(whole):
        raise ValueError("the token holds a blank, a line break or a character beyond ASCII")
    return whole


def _authorization(user: Mapping[str, Any], folder: Path) -> str:
    token = _token(user, folder)
    if token:
        return f"Bearer {token}"
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}"
        return "Basic " + base64.b64encode(pair.encode()).decode()
    return ""


def _kubeconfig_tls(
    server: str, cluster: Mapping[str, Any], beside: Path, user: Mapping[str, Any], folder: Path
) -> ssl.SSLContext | None:
    ca_file = cluster.get("certificate-authority", "")
    context = _tls(
        server,
        ca_file=str(beside / ca_file) if ca_file else "",
        ca_data=base64.b64decode(cluster.get("certificate-authority-data", "")).decode(),
        verify=not cluster.get("insecure-skip-tls-verify", False),
    )
    certificate = _pem(user, "client-certificate", folder)
    if context and certificate:
        _load_pair(context, certificate + b"\n" + _pem(user, "client-key", folder))
    return context


def _pem(user: Mapping[str, Any], name: str, folder: Path) -> bytes:
    if user.get(f"{name}-data"):
        return base64.b64decode(user[f"{name}-data"])
    return (folder / user[name]).read_bytes() if user.get(name) else b""


def _load_pair(context: ssl.SSLContext, pair: bytes) -> None:
    # OpenSSL takes a key from a file only; this one is private and removed at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair)
        file.flush()
        context.load_cert_chain(file.name)


def _tls(
    server: str, *, ca_file: str = "", ca_data: str = "", verify: bool = True
) -> ssl.SSLContext | None:
    if not server.startswith("https:"):
        return None
    if ca_file:
        # An error of OpenSSL names no file.
        Path(ca_file).open().close()
    context = ssl.create_default_context(cafile=ca_file or None, cadata=ca_data or None)
    # A default since Python 3.13; the CAs of many clusters lack the key identifier.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(server: str) -> str:
    """The proxy that the environment sets for a server; none for this machine itself."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return ""
    if urllib.request.proxy_bypass_environment(parts.netloc):  # type: ignore[attr-defined]
        return ""
    proxies = urllib.request.getproxies_environment()
    if _within(host, proxies.get("no", "")):
        return ""
    return _usable(proxies[parts.scheme]) if proxies.get(parts.scheme) else ""


def _within(host: str, networks: str) -> bool:
    """Whether an address is in one of the networks of NO_PROXY, as in Go; Python knows hosts."""
    for network in networks.split(","):
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(network.strip(), strict=False):
                return True
    return False


def _usable(proxy: str) -> str:
    """A proxy's URL, with the scheme that it may be written without.

    Raises NoCluster: it is no proxy for HTTP.
    """
    proxy = proxy.strip()
    whole = proxy if "://" in proxy else f"http://{proxy}"
    parts = urlsplit(whole)
    if parts.scheme in ("http", "https") and parts.hostname:
        return whole
    # A password may stand in it.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    raise NoCluster(
        f"The proxy {shown!r} cannot be used: it must be http:// or https:// and a host. Correct "
        "proxy-url in the kubeconfig, or HTTPS_PROXY; hosts in NO_PROXY are reached without it."
    )


def _subject(token: str) -> str:
    """The account in a service account's token, which is a JWT; empty where it is not."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(claims["sub"])
    except (IndexError, KeyError, ValueError, TypeError):
        return ""


def _by_official_client(paths: str, context: Mapping[str, Any], source: str) -> Credentials:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise NoCluster(
            f"The kubeconfig ({source}) uses an exec plugin or an auth provider, for which the "
            "official client is needed: run `pip install kubernetes`, or set KUBECONFIG to a file "
            "with a token or a client certificate."
        ) from error
    settings = client.Configuration()
    try:
        config.load_kube_config(paths, client_configuration=settings, persist_config=False)
        tls = _tls(settings.host, ca_file=settings.ssl_ca_cert or "", verify=settings.verify_ssl)
        if tls and settings.cert_file:
            tls.load_cert_chain(settings.cert_file, settings.key_file)
    except (config.ConfigException, OSError, ssl.SSLError) as error:
        raise NoCluster(f"The kubeconfig ({source}) cannot be used: {error}") from error
    return Credentials(
        server=settings.host.rstrip("/"),
        namespace=context.get("namespace") or "default",
        source=source,
        account=context.get("user", ""),
        authorization=settings.get_api_key_with_prefix("authorization") or "",
        tls=tls,
        server_name=settings.tls_server_name or "",
        proxy=_proxy(settings.host),
    )
