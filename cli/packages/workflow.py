"""How large the Argo Workflow of a run becomes, which is one object of a limited size.

KFP passes a step on through the nodes of the Workflow: with the retry strategy that KFP 2.17 sets
on every template, a node of the driver, of the step, and of its executor each have one more that
retries them, and all of them keep the step's container. The estimate writes such nodes. They are
those of the end of a run: no node is ever removed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from kfp_pytorch.cli.packages import messages
from kfp_pytorch.cli.packages.find import Package

# Argo's limit of one Workflow, below that of etcd.
LIMIT = 1 << 20
# Once the nodes are past this, nothing makes them fit.
_HOPELESS = 16 * LIMIT
_NAMED = 5
# The nodes of a real run have less in common than those that are written here.
_VARIETY = 1.25
# The templates that every Workflow has, in bytes.
_TEMPLATES = 10_000
_UID = "15e719c2-6075-4a79-a8d8-9d267de2aca3"
_OUTPUTS = "/tmp/kfp/outputs"  # noqa: S108 - KFP's
_TIME = "2026-11-28T21:56:42Z"
# What only the run knows: an output parameter, and an artifact's metadata.
_UNKNOWN = "x" * 60
_STORE = (
    '{"Provider":"minio","Params":{"accessKeyKey":"accesskey","disableSSL":"true","endpoint":'
    '"seaweedfs.kubeflow:9000","fromEnv":"false","maxRetries":"5","region":"minio",'
    '"secretKeyKey":"secretkey","secretName":"mlpipeline-minio-artifact"}}'
)
_METADATA = {"display_name": "x" * 10, "text": "x" * 250, "store_session_info": _STORE}

Object = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """What a Workflow comes to.

    Attributes:
        spec: The bytes of all but its nodes.
        nodes: The bytes of its nodes at the end of the run.
        compressed: The bytes of its nodes as Argo stores them past its limit.
        steps: The bytes of each step's nodes, all iterations together.
        unknown_loops: The loops whose number of iterations only the run knows: counted once.
    """

    spec: int
    nodes: int
    compressed: int
    steps: Counter[str]
    unknown_loops: list[str]

    @property
    def whole(self) -> int:
        """The bytes of the Workflow, were it never compressed."""
        return self.spec + self.nodes

    @property
    def stored(self) -> int:
        """The bytes of the Workflow as it is stored at its largest."""
        return self.whole if self.whole <= LIMIT else self.spec + self.compressed


def check(package: Package, *, verbose: bool = False) -> None:
    """Refuses a package whose Workflow would not fit, and warns of one that nearly does not.

    Args:
        package: The package.
        verbose: Whether to print the estimate of one that fits, too.

    Raises:
        click.ClickException: The Workflow would be too large.
    """
    found = estimate(package.spec, package.platform)
    name = package.pipeline_name
    largest = ", ".join(f"{step} {size:,}" for step, size in found.steps.most_common(_NAMED))
    packed = f" ({found.whole:,} before Argo compresses it)" if found.stored != found.whole else ""
    words = f"its Workflow grows to about {found.stored:,} bytes{packed} of {LIMIT:,}"
    if found.stored > LIMIT:
        raise click.ClickException(
            f"{name}: {words}, and no run could end. The largest steps, in bytes: {largest}.\n"
            "Shorten their source and inputs, have fewer iterations or steps in one run, or split "
            "the pipeline in two."
        )
    for loop in found.unknown_loops:
        click.echo(
            f"Warning: {name}: how often {loop} iterates is known only when it runs; the size of "
            "its Workflow is estimated for one iteration.",
            err=True,
        )
    if verbose:
        click.echo(f"{name}: {words}. The largest steps, in bytes: {largest}.", err=True)
    elif found.stored > LIMIT // 2:
        click.echo(f"Warning: {name}: {words}; --verbose names the largest steps.", err=True)


def estimate(spec: Object, platform: Object) -> Estimate:
    """Computes what the Workflow of a package comes to.

    Args:
        spec: The pipeline's specification.
        platform: The platform's part of the package; empty when there is none.

    Returns:
        The estimate.
    """
    writer = _Writer(spec, messages.kubernetes_settings(platform))
    root = spec["root"]
    writer.enter_dag("root", root, {})
    writer.dag(root, _defaults(root), "root")
    # A map by the identity of nodes, in their order, which is no order of the run.
    content = ",".join(text for _, text in sorted(writer.nodes)).encode()
    return Estimate(
        spec=writer.spec_bytes(),
        nodes=len(content),
        compressed=round(_VARIETY * len(base64.b64encode(gzip.compress(content)))),
        steps=writer.steps,
        unknown_loops=list(dict.fromkeys(writer.unknown_loops)),
    )


@dataclass
class _Writer:
    """Writes the nodes of a run, and counts what the specification of its Workflow holds."""

    spec: Object
    kubernetes: Object
    nodes: list[tuple[str, str]] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    unknown_loops: list[str] = field(default_factory=list)
    _parts: dict[str, int] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def spec_bytes(self) -> int:
        """The bytes of arguments and templates."""
        return _TEMPLATES + sum(self._parts.values())

    def dag(self, component: Object, given: Object, where: str) -> None:
        """Write the nodes of the tasks of a pipeline, loop or condition, once."""
        for key, task in component["dag"].get("tasks", {}).items():
            child = self.spec["components"][task["componentRef"]["name"]]
            inputs = _defaults(child) | _inputs(task, given)
            self._count_task(f"{where}/{key}", task, child)
            if "dag" in child:
                self.enter_dag(key, child, task)
                for number in range(self._iterations(key, task, inputs)):
                    if self.steps.total() > _HOPELESS:
                        return
                    self._group_nodes(key)
                    self.dag(child, inputs, f"{where}/{key}/{number and 1}")
            else:
                self._step(key, task, child, inputs)

    def enter_dag(self, key: str, component: Object, task: Object) -> None:
        """Write the nodes of the driver of a group of tasks, and of the group."""
        text = _compact(component)
        self._parts.setdefault(text, len(text.encode()) + 100)
        values = _values(component=text, task=_compact(task), config=_UNKNOWN)
        self._pair(key, f"{key}-driver", "system-dag-driver", values, _values(count="0"))
        self._group_nodes(key)

    def _group_nodes(self, key: str) -> None:
        self._pair(key, key, key, _values(parent="9"), "")

    def _iterations(self, key: str, task: Object, inputs: Object) -> int:
        loop = task.get("parameterIterator") or task.get("artifactIterator")
        if loop is None:
            return 1
        source = loop.get("items", {})
        items = json.loads(source["raw"]) if "raw" in source else inputs.get(
            source.get("inputParameter", "")
        )  # fmt: skip
        if isinstance(items, list):
            return len(items)
        self.unknown_loops.append(key)
        return 1

    def _count_task(self, place: str, task: Object, child: Object) -> None:
        """Count what the templates and arguments hold of a task."""
        self._parts[place] = 1050 + len(json.dumps(_compact(task)).encode())
        texts = [_compact(child)]
        if "executorLabel" in child:
            texts.append(_compact(self._executor(child)))
            texts.append(_compact(self.kubernetes.get(child["executorLabel"], {})))
        for text in texts:
            self._parts.setdefault(text, len(json.dumps(text).encode()) + 110)

    def _executor(self, component: Object) -> Object:
        executors = self.spec.get("deploymentSpec", {}).get("executors", {})
        executor: Object = executors.get(component["executorLabel"], {})
        container: Object = executor.get("container", executor)
        return container

    def _step(self, key: str, task: Object, component: Object, inputs: Object) -> None:
        executor = self._executor(component)
        settings = self.kubernetes.get(component["executorLabel"], {})
        whole, container = _compact(component), _compact(executor)
        values = _values(
            component=whole, task=_compact(task), container=container, name=key,
            config=_compact(settings) if settings else "",
        )  # fmt: skip
        if "image" not in executor:
            self._pair(key, key, "system-importer", values, "")
            return
        annotations = settings.get("podMetadata", {}).get("annotations", {})
        patch = self._patch(key, executor, whole, _executor_input(key, component, inputs))
        passed = _values(patch=patch, cached="false", **annotations)
        self._pair(key, f"{key}-driver", "system-container-driver", values, passed)
        self._pair(key, key, "system-container-executor", passed, "")
        tries = 1 + int(task.get("retryPolicy", {}).get("maxRetryCount", 0))
        self._pair(key, "executor", "system-container-impl", passed, "", tries)

    def _patch(self, key: str, executor: Object, component: str, given: str) -> str:
        """The pod that a driver asks for, as JSON: it is one output parameter of the driver."""
        servers = ["--mlmd_server_address", "metadata-grpc-service.kubeflow.svc.cluster.local"] * 3
        command = ["/kfp-launcher/launch", "--pipeline_name", key, "--run_id", _UID, *servers]
        command += ["--executor_input", given, "--component_spec", component]
        args = [*executor.get("command", []), *executor.get("args", [])]
        main = {"name": "main", "command": command, "args": args, "resources": {}}
        return _compact({"containers": [{**executor, **main}]})

    def _pair(
        self, key: str, name: str, template: str, inputs: str, outputs: str, tries: int = 1
    ) -> None:
        """Write the node of a template, once for each try, and the one that retries it."""
        for number in range(1 + tries):
            identity = hashlib.sha256(str(next(self._ids)).encode()).hexdigest()[:30]
            shown = name if number == 0 else f"{name}({number - 1})"
            text = _compact(
                {
                    "boundaryID": identity[:10], "children": [identity[10:20]], "finishedAt": _TIME,
                    "displayName": shown, "id": f"{key}-{identity[20:]}", "startedAt": _TIME,
                    "name": f"{_UNKNOWN}.{shown}", "nodeFlag": {"retried": True}, "type": "Retry",
                    "phase": "Succeeded", "progress": "1/1", "taskResultSynced": True,
                    "resourcesDuration": {"cpu": 4, "memory": 86}, "templateName": template,
                    "templateScope": f"local/{_UNKNOWN[:20]}",
                    "inputs": inputs, "outputs": outputs,
                }
            )  # fmt: skip
            self.nodes.append((identity, text))
            self.steps[key] += len(text.encode())


def _executor_input(key: str, component: Object, inputs: Object) -> str:
    """The inputs and outputs of a step, as its driver writes them."""
    uri = f"minio://mlpipeline/v2/artifacts/{_UNKNOWN[:20]}/{_UID}/{key}/{_UID[::-1]}/"
    outputs = component.get("outputDefinitions", {})
    taken = component.get("inputDefinitions", {}).get("artifacts", {})
    made = {**outputs.get("artifacts", {}), "executor-logs": {"artifactType": {"schemaTitle": ""}}}
    artifact = {"name": "15", "type": {"instanceSchema": ""}, "metadata": _METADATA}
    value = {
        "inputs": {
            "parameterValues": inputs,
            "artifacts": {n: {"artifacts": [{**artifact, "uri": uri + n}]} for n in taken},
        },
        "outputs": {
            "parameters": {
                n: {"outputFile": f"{_OUTPUTS}/{n}"} for n in outputs.get("parameters", {})
            },
            "artifacts": {
                n: {"artifacts": [{"name": n, "type": of["artifactType"], "uri": uri + n}]}
                for n, of in made.items()
            },
            "outputFile": f"{uri}output_metadata.json",
        },
    }
    return _compact(value)


def _values(**parameters: str) -> Any:
    return {"parameters": [{"name": n, "value": v} for n, v in parameters.items()]}


def _defaults(component: Object) -> Object:
    declared = component.get("inputDefinitions", {}).get("parameters", {})
    return {n: d["defaultValue"] for n, d in declared.items() if "defaultValue" in d}


def _inputs(task: Object, given: Object) -> Object:
    """The values that a task is given, as far as they are known."""
    found = {}
    for name, source in task.get("inputs", {}).get("parameters", {}).items():
        parameter = source.get("componentInputParameter", "")
        constant = source.get("runtimeValue", {}).get("constant", _UNKNOWN)
        found[name] = given.get(parameter, constant)
    return found


def _compact(value: Any) -> str:
    """JSON as Go writes it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
