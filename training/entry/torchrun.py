"""From a pod's environment to the arguments of torchrun's agent.

The operator and Trainer both set `PET_…`, which torchrun reads by itself. The operator's `RANK` is
the rank of a node, and its `WORLD_SIZE` the number of replicas times the processes of each, with
`auto` counted as one. Neither is used as the rank of a process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.resources import usable_cores

LOOPBACK_ADDRESSES = ("127.0.0.1", "localhost", "::1")
RANK_MODULE = "kfp_pytorch.training.rank"
_ETCD_BACKENDS = ("etcd", "etcd-v2")
_STATIC_BACKEND = "static"
# Instead of a number of processes: torchrun counts devices.
_COUNTED = ("auto", "cpu", "gpu")
_LAST_PORT = 65535
_NO_LIMIT = 2**63


def agent_arguments(environ: Mapping[str, str]) -> list[str]:
    """The arguments that torchrun needs beside those that it reads from the environment."""
    if "TORCHELASTIC_RUN_ID" in environ:
        raise ConfigError(
            "this process was started by torchrun already; run `python -m kfp_pytorch.training` "
            f"without torchrun, or `torchrun -m {RANK_MODULE}`"
        )
    # A blank is no address; torch would look for a host of that name until its timeout.
    environ = {name: value.strip() for name, value in environ.items()}
    _check_plain(environ)
    _check_rendezvous(environ)
    _check_torchrun_variables(environ)
    if environ.get("PET_RDZV_ENDPOINT") or environ.get("PET_STANDALONE"):
        return []
    nodes = _node_count(environ)
    if nodes is None or (nodes == 1 and not environ.get("PET_MASTER_ADDR")):
        return ["--standalone"]
    return _static_arguments(environ, nodes)


def threads_per_process(environ: Mapping[str, str]) -> int:
    """The threads of each process: this container's cores, divided among those that share them.

    More threads than cores make training several times slower. Processes that share are those of
    this node, and of all nodes where the first one's address says that they are on one machine.
    """
    cores = usable_cores()
    processes = environ.get("PET_NPROC_PER_NODE", "1")
    share = int(processes) if processes.isdecimal() else cores
    address = environ.get("PET_MASTER_ADDR") or environ.get("PET_RDZV_ENDPOINT") or ""
    nodes = environ.get("PET_NNODES", "").rpartition(":")[2]
    # ::1 alone, and [::1] where a port follows.
    host = address.partition("]")[0].strip("[") if "::" in address else address.partition(":")[0]
    if host in LOOPBACK_ADDRESSES and nodes.isdecimal():
        share *= int(nodes)
    return max(1, cores // max(1, share))


def _check_plain(environ: Mapping[str, str]) -> None:
    """Refuses invalid RANK, WORLD_SIZE and MASTER_… of an operator."""
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if (rank is None) != (world is None):
        here, gone = ("RANK", "WORLD_SIZE") if world is None else ("WORLD_SIZE", "RANK")
        raise ConfigError(f"{here}={environ[here]} is set but {gone} is not; set both or neither")
    if rank is not None and world is not None and rank >= world:
        raise ConfigError(
            f"RANK={rank} must be below WORLD_SIZE={world}: it counts nodes from 0; "
            "check the environment of this pod"
        )
    for prefix in ("", "PET_"):
        address, port = environ.get(f"{prefix}MASTER_ADDR"), environ.get(f"{prefix}MASTER_PORT")
        if bool(address) != bool(port):
            here, gone = ("ADDR", "PORT") if address else ("PORT", "ADDR")
            raise ConfigError(
                f"{prefix}MASTER_{here} is set but {prefix}MASTER_{gone} is not; set both: the "
                "first node listens there and the others connect to it"
            )
        _number(environ, f"{prefix}MASTER_PORT", 1, _LAST_PORT)


def _check_rendezvous(environ: Mapping[str, str]) -> None:
    """Refuses a rendezvous on etcd without its client, which torch would need much later."""
    backend = environ.get("PET_RDZV_BACKEND", "")
    if backend in _ETCD_BACKENDS and importlib.util.find_spec("etcd") is None:
        raise ConfigError(
            f"PET_RDZV_BACKEND is {backend}, and the package python-etcd is not installed; install "
            "kfp-pytorch[etcd] in this image, or take c10d as the job's rdzvBackend"
        )


def _check_torchrun_variables(environ: Mapping[str, str]) -> None:
    """Refuses invalid variables that torchrun reads, whose own error does not name them."""
    _number(environ, "PET_MAX_RESTARTS")
    processes = environ.get("PET_NPROC_PER_NODE", "").strip()
    if processes not in _COUNTED:
        _number(environ, "PET_NPROC_PER_NODE", 1, or_else=f" or {', '.join(_COUNTED)}")
    nodes = environ.get("PET_NNODES", "")
    least, is_range, most = nodes.partition(":")
    if not is_range:
        _number(environ, "PET_NNODES", 1)
    elif not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise ConfigError(
            f"PET_NNODES={nodes!r} is no range of nodes; write MIN:MAX, from 1, as in 1:4"
        )
    for option in environ.get("PET_RDZV_CONF", "").split(","):
        name, _, value = (part.strip() for part in option.partition("="))
        if name.endswith("timeout") and not value.isdecimal():
            raise ConfigError(
                f"PET_RDZV_CONF has {option.strip()!r}; write whole seconds, as in {name}=600"
            )


def _node_count(environ: Mapping[str, str]) -> int | None:
    """The number of nodes, by `PET_NNODES` or an older operator's `WORLD_SIZE`."""
    text = environ.get("PET_NNODES", "")
    if ":" in text:
        raise ConfigError(
            f"PET_NNODES={text} asks for an elastic job, and PET_RDZV_ENDPOINT is not set; "
            "set it to HOST:PORT of the first node, or PET_NNODES to one number"
        )
    return _number(environ, "PET_NNODES") if text else _number(environ, "WORLD_SIZE")


def _static_arguments(environ: Mapping[str, str], nodes: int) -> list[str]:
    backend = environ.get("PET_RDZV_BACKEND") or _STATIC_BACKEND
    if nodes > 1 and backend != _STATIC_BACKEND:
        # Each node would wait for the others at a rendezvous of its own.
        raise ConfigError(
            f"there are {nodes} nodes that meet by PET_RDZV_BACKEND={backend}, and "
            "PET_RDZV_ENDPOINT does not say where; set it to HOST:PORT of the first node, or leave "
            "PET_RDZV_BACKEND out"
        )
    node_rank = _number(environ, "PET_NODE_RANK")
    if node_rank is None:
        node_rank = _number(environ, "RANK")
    if node_rank is None:
        raise ConfigError(f"there are {nodes} nodes, and PET_NODE_RANK does not say which this is")
    if node_rank >= nodes:
        raise ConfigError(
            f"the node rank {node_rank} must be below the number of nodes {nodes}; "
            "check PET_NODE_RANK and PET_NNODES of this pod"
        )
    address = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR")
    port = environ.get("PET_MASTER_PORT") or environ.get("MASTER_PORT")
    if not address or not port:
        raise ConfigError(
            f"there are {nodes} nodes, and PET_MASTER_ADDR and PET_MASTER_PORT do not say where "
            "the first one listens"
        )
    return [
        f"--nnodes={nodes}",
        f"--node-rank={node_rank}",
        f"--master-addr={address}",
        f"--master-port={port}",
    ]


def _number(
    environ: Mapping[str, str], name: str, least: int = 0, most: int = _NO_LIMIT, or_else: str = ""
) -> int | None:
    """The number of a variable, or None; `or_else` says what else is valid."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isdecimal() and least <= int(text) <= most):
        limits = f"from {least}" + (f" to {most}" if most < _NO_LIMIT else "")
        raise ConfigError(
            f"{name}={text!r} is not a number {limits}{or_else}; check this pod's environment"
        )
    return int(text)
