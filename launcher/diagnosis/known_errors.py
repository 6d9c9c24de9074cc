"""What to do about errors that are known by their words. No I/O."""

from __future__ import annotations

from kfp_pytorch.launcher import patterns

STOPPED = (
    "It was stopped by SIGTERM: its pod was deleted or preempted, or its node drained. A retry of "
    "the step continues from the last checkpoint."
)
# The first that fits counts: the narrower before the wider.
_HINTS = (
    (
        r"Duplicate GPU detected|invalid device ordinal",
        "Choose the device by LOCAL_RANK, and keep nproc_per_node at gpus_per_node.",
    ),
    (
        r"(?:CUDA|HIP) out of memory|torch\.OutOfMemoryError|cuda.*OutOfMemory"
        r"|Cuda failure.{0,8}out of memory|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
        "The GPU's memory is full: a smaller batch, gradient accumulation, or sharding.",
    ),
    (
        r"insufficient shared memory|/dev/shm|out of shared memory|[Bb]us error",
        "The shared memory at /dev/shm is too small: set shm_size.",
    ),
    (
        r"DataLoader worker .* (?:killed by signal|exited unexpectedly)",
        "A loader worker was killed, mostly for memory: raise memory or use fewer workers.",
    ),
    (
        r"\bMemoryError\b|Cannot allocate memory|can't allocate memory"
        r"|ArrayMemoryError|std::bad_alloc",
        "The pod's memory is full: raise memory, or need less of it.",
    ),
    (
        r"uncorrectable ECC|fallen off the bus|\bXid\b|unspecified launch failure"
        r"|NVLink error|CUDA error: (?:unknown error|hardware)",
        "Most likely a GPU is broken, not the program: start the step again, which continues "
        "from the last checkpoint, and report its node, which is named below, to an administrator.",
    ),
    (
        r"CUDA driver version is insufficient|no kernel image is available"
        r"|driver on your system is too old",
        "The image's CUDA does not fit the node's driver or GPU: use an image that does.",
    ),
    (
        r"not compiled with CUDA",
        "The image has torch for CPUs alone: use an image whose torch was built for CUDA.",
    ),
    (
        r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device"
        r"|torch\.cuda\.is_available\(\) is False",
        "The container has no GPU: set gpus_per_node, or let the program train on the CPU.",
    ),
    (
        r"devices are busy or unavailable",
        "Another process holds the GPU: start the step again; if it recurs, report its node, "
        "which is named below, to an administrator.",
    ),
    (
        r"device-side assert|illegal memory access",
        "CUDA reports it late, so the traceback may show another line: run once with "
        "CUDA_LAUNCH_BLOCKING=1 in env. Mostly it is an index, or a class, out of range.",
    ),
    (
        r"no socket interface found|Unable to find address for",
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names a network interface that pods do not have: "
        "leave it out of env, or name the pods' own, mostly eth0.",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "Two processes of a pod listen on one port: start one torchrun a pod, and nothing else on "
        "the port that MASTER_PORT names.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "A disk is full: the claim of output_uri, or the node's own under the container.",
    ),
    (
        r"Stale file handle|Input/output error|Transport endpoint is not connected"
        r"|Remote I/O error",
        "The storage failed under the program: start the step again, which continues from the last "
        "checkpoint; if it recurs, an administrator checks that storage.",
    ),
    (
        r"Read-only file system|Permission denied",
        "The container's user may not write there; output_uri is writable: KFP_PYTORCH_OUTPUT.",
    ),
    (
        r"can't start new thread|Resource temporarily unavailable",
        "The pod has reached its limit of threads: set OMP_NUM_THREADS in env, or use fewer loader "
        "workers.",
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "Use fewer loader workers, or torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
    (
        r"NoCredentials|Unable to locate credentials|Access ?Denied|InvalidAccessKeyId"
        r"|DefaultCredentialsError"
        r"|SignatureDoesNotMatch|access key ID you provided does not exist"
        r"|request signature we calculated does not match",
        "The bucket refuses: name the Secret with its credentials as output_secret.",
    ),
    (
        r"NoSuchBucket|bucket does not exist",
        "Create the bucket, or correct its name in output_uri; AWS_ENDPOINT_URL says on which "
        "server it is.",
    ),
    (
        r"certificate verify failed|CERTIFICATE_VERIFY_FAILED",
        "The container does not trust that server's certificate: build its CA into the image, or "
        "name a bundle in env (SSL_CERT_FILE, REQUESTS_CA_BUNDLE, AWS_CA_BUNDLE).",
    ),
    (
        r"GatedRepoError|RepositoryNotFoundError|40[13] Client Error",
        "The server wants a login, or one that may read this: give its token from a Secret in env.",
    ),
    (
        r"Temporary failure in name resolution|NameResolutionError|Network is unreachable"
        r"|Max retries exceeded with url|EndpointConnectionError|couldn't connect to 'https?:",
        "The pod does not reach that server: check its name, and whether pods may reach it at "
        "all. What training downloads can be put on the claim, or into the image, beforehand.",
    ),
    (
        r"error: (?:unrecognized arguments|the following arguments are required|argument \S)",
        "Correct args or hyperparameters: the program does not take them so.",
    ),
    (
        r"can't open file '",
        "The image has no such file: correct command or args, or build it into the image.",
    ),
    (
        r"variable \w+ expected, but not set|KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'",
        "The program wants torchrun's variables: let command begin with torchrun.",
    ),
    (
        r"getpwuid\(\): uid not found",
        "The image knows no user of that number: set USER and HOME in env, or run_as_user to one "
        "that it knows.",
    ),
    (
        r"No module named|cannot open shared object file",
        "The image lacks it, or has it for another Python: build it into the image.",
    ),
    (
        r"CheckpointError|Error\(s\) in loading state_dict|PytorchStreamReader failed"
        r"|Weights only load failed",
        "The checkpoint was refused: the message says which one, and why. Move it away, so that an "
        "older one is taken, or use another folder (key, resume_from). To start from the beginning "
        "pass --resume never, which deletes the folder's checkpoints.",
    ),
    (r"SignalException|got signal: 15|^KeyboardInterrupt", STOPPED),
)


def advice(text: str) -> str:
    """Return what to do about an error, or an empty string where its words are not known."""
    return patterns.advice(_HINTS, text)


def known(text: str) -> tuple[str, str]:
    """Find words in a log that are known.

    Returns the line that they are in, at most 300 characters of it, and what to do; empty where
    nothing is known.
    """
    match, advice = patterns.first(_HINTS, text)
    if match is None:
        return "", ""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[start : end if end >= 0 else len(text)].strip()
    return line[:300], advice
