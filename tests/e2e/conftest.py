"""The cluster of the end-to-end tests: a local one, or that of `--kubeconfig FILE`.

A test is given a `cluster` and does not know which. What only the local one has, such as the files
of a claim on this machine, needs the marker `local_cluster`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness.command import COMMAND, left_of
from harness.kfp.steps import Where, new_run

from kfp_pytorch.cli import main

CRDS = Path(__file__).resolve().parents[3] / "shared" / "crds"


@dataclass(frozen=True)
class Ran:
    """What `kfp-pytorch run --json` did."""

    code: int
    summary: dict[str, Any]
    stderr: str

    def step(self, name: str) -> str:
        """A step's status."""
        return next(s["status"] for s in self.summary["steps"] if s["name"] == name)

    def artifact(self, name: str) -> str:
        """A text artifact's content."""
        return Path(self.summary["artifacts"][name]).read_text()


@dataclass(frozen=True)
class Cluster:
    """Where pipelines are run, and where their objects can be looked at."""

    kubeconfig: Path
    root: Path
    where: list[str]
    image: str = ""

    def run(self, pipeline: str, *options: str, **parameters: Any) -> Ran:
        """Run a pipeline to its end."""
        given = dict(parameters)
        if pipeline == "train_and_serve" and self.image:
            given = {"image": self.image, **given}
        arguments = ["run", pipeline, *self.where, "--root", str(self.root), "--json"]
        for name, value in given.items():
            arguments += ["-p", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        # In this process, which has imported KFP: that takes longer than many a run.
        ran = CliRunner().invoke(main, [*arguments, *options], catch_exceptions=False)
        assert ran.stdout.count("\n") == 1, ran.output
        return Ran(ran.exit_code, json.loads(ran.stdout), ran.stderr)

    def objects(self, kind: Any, **labels: str) -> list[dict[str, Any]]:
        """List the custom objects of a kind that have these labels."""
        from kubernetes import client, config

        api = client.CustomObjectsApi(config.new_client_from_config(str(self.kubeconfig)))
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        listed = api.list_namespaced_custom_object(
            kind.group, kind.version, self.namespace, kind.plural, label_selector=selector
        )
        return listed["items"]

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context."""
        from kubernetes import config

        _, active = config.list_kube_config_contexts(str(self.kubeconfig))
        return active["context"].get("namespace", "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kubeconfig"):
        skip = pytest.mark.skip(reason="needs the cluster of this machine")
        for item in items:
            if item.get_closest_marker("local_cluster"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    given = request.config.getoption("--kubeconfig")
    if given:
        path = Path(given).absolute()
        image = request.config.getoption("--training-image")
        yield Cluster(path, root, ["--kubeconfig", str(path)], image)
        return
    crds = ["--crds", str(CRDS)] if CRDS.is_dir() else []
    subprocess.run([*COMMAND, "local", "up", "--root", str(root), *crds], check=True)
    try:
        yield Cluster(root / "kubeconfig", root, ["--local"])
    finally:
        subprocess.run([*COMMAND, "local", "down", "--root", str(root)], check=True)
        assert left_of(root) == []


@pytest.fixture(scope="session")
def training_image(cluster: Cluster) -> str:
    """An image that trains; the local cluster runs this Python, whatever the image is called."""
    if not cluster.image and cluster.where != ["--local"]:
        pytest.skip("give the image that trains as --training-image")
    return cluster.image or "any"


@pytest.fixture
def where(cluster: Cluster, tmp_path: Path) -> Where:
    """A run whose steps are run as on a cluster, with the local one to keep their objects."""
    return new_run(cluster.root, tmp_path)
