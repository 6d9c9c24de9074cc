"""What KFP's API server keeps: experiments, pipelines and their versions, recurring runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.kfp_api import rules
from harness.kfp_api.argo import Outcome
from harness.kfp_api.errors import EXISTS, INTERNAL, INVALID, NOT_FOUND, ApiError, UploadError
from harness.kfp_api.runs import NEVER, Run, stamp

Object = dict[str, Any]
_USUAL_ACCOUNT = {False: "pipeline-runner", True: "default-editor"}


class Store:
    """Everything that one server has.

    Attributes:
        version: KFP's version, such as `2.17.0`.
        multi_user: Whether each object is in a namespace.
        outcomes: How steps go, by the names of their tasks.
        workflow_names: Makes the name of a Workflow from that of its pipeline.
        retries_all: Whether Argo is configured to retry every template.
    """

    def __init__(self, version: str = "2.17.0", *, multi_user: bool = False) -> None:
        self.version = version
        self.multi_user = multi_user
        self.outcomes: dict[str, Outcome] = {}
        self.workflow_names: Callable[[str], str] = lambda pipeline: f"{pipeline}-{_suffix()}"
        self.retries_all = version >= "2.17"
        self._now = datetime(2026, 11, 28, 12, tzinfo=UTC)
        self.experiments: dict[str, Object] = {}
        self.pipelines: dict[str, Object] = {}
        self.versions: dict[str, Object] = {}
        self.recurring: dict[str, Object] = {}
        self.runs: dict[str, Run] = {}
        if not multi_user:
            words = "All runs created without specifying an experiment will be grouped here."
            self.create_experiment({"display_name": "Default", "description": words})

    def time(self, seconds: float = 1.0) -> str:
        """The time of the server's clock, which goes on with each call."""
        self._now += timedelta(seconds=seconds)
        return stamp(self._now)

    # Experiments.

    def create_experiment(self, body: Object) -> Object:
        """Creates an experiment; a name is given once in a namespace."""
        name, namespace = body.get("display_name", ""), body.get("namespace", "")
        self.check_namespace(namespace, "An experiment")
        if any(_is(each, name, namespace) for each in self.experiments.values()):
            words = f"The name {name} already exists. Please specify a new name"
            first = f"Failed to create a new experiment. {words}"
            message = f"Failed to create a experiment: Already exist error: {first}"
            raise ApiError(EXISTS, message, first)
        made = {
            "experiment_id": str(uuid.uuid4()),
            **_given(body, "display_name", "description", "namespace"),
            "created_at": self.time(),
            "storage_state": "AVAILABLE",
            "last_run_created_at": NEVER,
        }
        self.experiments[made["experiment_id"]] = made
        return made

    def experiment(self, key: str) -> Object:
        """An experiment by its id."""
        if key not in self.experiments:
            words = f"Experiment {key} not found"
            message = f"Failed to fetch experiment: ResourceNotFoundError: {words}"
            raise ApiError(NOT_FOUND, message, words)
        return self.experiments[key]

    def check_namespace(self, namespace: str, what: str) -> None:
        """Refuses an object without a namespace where there must be one."""
        if self.multi_user and not namespace:
            words = f"{what} cannot have an empty namespace in multi-user mode"
            raise ApiError(INVALID, f"Invalid input error: {words}", words)

    # Pipelines and versions.

    def create_pipeline(self, body: Object) -> Object:
        """Creates a pipeline without a version."""
        name = body.get("name") or body.get("display_name", "")
        namespace = body.get("namespace", "")
        if not name:
            raise ApiError(INVALID, "pipeline's name cannot be empty")
        if any(_named(each, name, namespace) for each in self.pipelines.values()):
            words = f"Failed to create a new pipeline. The name {name} already exist"
            raise ApiError(EXISTS, f"Failed to create a pipeline: {words}", words)
        made = {
            "pipeline_id": str(uuid.uuid4()),
            "display_name": body.get("display_name") or name,
            "name": name,
            **_given(body, "description", "namespace"),
            "created_at": self.time(),
        }
        self.pipelines[made["pipeline_id"]] = made
        return made

    def upload(self, text: str, filename: str, query: dict[str, str]) -> Object:
        """Creates a pipeline with a first version of the same name, from a file."""
        failed = "Failed to create a pipeline and a pipeline version"
        read = rules.package(text, filename, failed)
        name = query.get("name") or query.get("display_name") or filename
        if len(name) > 128:
            raise UploadError(INVALID, "Pipeline.Name length cannot exceed 128")
        try:
            made = self.create_pipeline({**query, "name": name})
        except ApiError:
            raise UploadError(EXISTS, failed) from None
        self._add_version(made["pipeline_id"], name, query, *read)
        return made

    def upload_version(self, text: str, filename: str, query: dict[str, str]) -> Object:
        """Creates a version of a pipeline from a file; its name is given once."""
        failed = "Failed to create a pipeline version"
        read = rules.package(text, filename, failed)
        pipeline = query.get("pipelineid", "")
        if pipeline not in self.pipelines:
            raise UploadError(INVALID, failed)
        name = query.get("name") or filename
        if len(name) > 127:
            raise UploadError(INVALID, "PipelineVersion.Name length cannot exceed 127")
        if any(each["name"] == name for each in self.versions_of(pipeline)):
            raise UploadError(EXISTS, failed)
        return self._add_version(pipeline, name, query, *read)

    def _add_version(
        self, pipeline: str, name: str, query: dict[str, str], spec: Object, platform: Object
    ) -> Object:
        both = {"pipeline_spec": spec, "platform_spec": platform} if platform else spec
        made = {
            "pipeline_id": pipeline,
            "pipeline_version_id": str(uuid.uuid4()),
            "display_name": query.get("display_name") or name,
            "name": name,
            **_given(query, "description"),
            "created_at": self.time(),
            "pipeline_spec": both,
        }
        self.versions[made["pipeline_version_id"]] = made
        return made

    def pipeline(self, key: str) -> Object:
        """A pipeline by its id."""
        if key not in self.pipelines:
            words = f"Pipeline {key} not found"
            message = f"Failed to get a pipeline with id {key}: ResourceNotFoundError: {words}"
            raise ApiError(NOT_FOUND, message, words)
        return self.pipelines[key]

    def pipeline_named(self, name: str, namespace: str) -> Object:
        """A pipeline by its name and namespace."""
        for each in self.pipelines.values():
            if _named(each, name, namespace):
                return each
        words = f"Namespace/Pipeline {namespace}/{name} not found"
        message = (
            f"Failed to get a pipeline with name {name} and namespace {namespace}. Check error "
            f"stack.: Failed to get a pipeline named {name} in namespace {namespace}: "
            f"ResourceNotFoundError: {words}"
        )
        raise ApiError(NOT_FOUND, message, words)

    def delete_pipeline(self, key: str, *, cascade: bool) -> None:
        """Deletes a pipeline; one with versions only with them."""
        self.pipeline(key)
        held = self.versions_of(key)
        if held and not cascade:
            words = f"Failed to delete pipeline with id {key} as it has existing pipeline versions"
            raise ApiError(INVALID, words, words)
        for version in held:
            del self.versions[version["pipeline_version_id"]]
        del self.pipelines[key]

    def versions_of(self, pipeline: str) -> list[Object]:
        """The versions of a pipeline, the oldest first."""
        return [each for each in self.versions.values() if each["pipeline_id"] == pipeline]

    def version_of(self, pipeline: str, key: str) -> Object:
        """A version by its id; `pipeline` is not looked at."""
        del pipeline
        if key not in self.versions:
            words = f"PipelineVersion {key} not found"
            message = (
                f"Failed to get a pipeline version with id {key}: ResourceNotFoundError: {words}"
            )
            raise ApiError(NOT_FOUND, message, words)
        return self.versions[key]

    # Runs, and what makes them again and again.

    def spec_of(self, body: Object, failed: str) -> tuple[Object, Object]:
        """The package that a run names or brings."""
        reference = body.get("pipeline_version_reference", {})
        if key := reference.get("pipeline_version_id"):
            if key not in self.versions:
                why = (
                    "InternalServerError: Failed to create a run due to error fetching manifest",
                    "Failed to fetch a template due to error retrieving pipeline version",
                    "Failed to fetch a pipeline version and its manifest from pipeline version "
                    f"{key}",
                    f"Failed to get a pipeline version with id {key}",
                    f"ResourceNotFoundError: PipelineVersion {key} not found",
                )
                raise ApiError(INTERNAL, ": ".join((failed, *why)), "Internal Server Error")
            both = self.versions[key]["pipeline_spec"]
        else:
            both = body.get("pipeline_spec", {})
        documents = (
            [both["pipeline_spec"], both.get("platform_spec", {})]
            if "pipeline_spec" in both
            else [both]
        )
        try:
            return rules.checked_package(documents)
        except (ValueError, TypeError) as error:
            raise ApiError(INVALID, f"{failed}: {error}", str(error)) from None

    def create_run(self, body: Object, recurring: str = "") -> Run:
        """Creates a run, which begins at once."""
        failed = "Failed to create a new run"
        if not body.get("display_name"):
            words = "The run name is empty. Please specify a valid name"
            raise ApiError(INVALID, f"{failed}: {words}", words)
        experiment = self._experiment_of(body, failed)
        spec, platform = self.spec_of(body, failed)
        given = body.get("runtime_config", {}).get("parameters", {})
        if words := rules.check_parameters(spec, given):
            message = (
                f"{failed}: Failed to generate the ExecutionSpec: invalid pipeline job inputs: "
                f"Invalid input error: {words}"
            )
            raise ApiError(INVALID, message, words)
        now = self.time()
        account = body.get("service_account") or _USUAL_ACCOUNT[self.multi_user]
        made = Run(
            self.workflow_names(spec["pipelineInfo"]["name"]),
            {**body, "experiment_id": experiment["experiment_id"], "service_account": account},
            now,
            (spec, platform),
            self.outcomes,
            retries_all=self.retries_all,
            recurring=recurring,
        )
        experiment["last_run_created_at"] = now
        self.runs[made.key] = made
        return made

    def run(self, key: str, failed: str) -> Run:
        """A run by its id."""
        if key not in self.runs:
            words = f"Run {key} not found"
            message = f"{failed}: ResourceNotFoundError: {words}"
            raise ApiError(NOT_FOUND, message, words)
        return self.runs[key]

    def advance(self, run: Run) -> None:
        """Lets ten seconds pass for a run."""
        run.advance(self.time(10))

    def _experiment_of(self, body: Object, failed: str) -> Object:
        key = body.get("experiment_id")
        if key:
            return self.experiment(key)
        if self.multi_user:
            words = "Experiment id can not be empty in multi-user mode"
            raise ApiError(INVALID, f"{failed}: Invalid input error: {words}", words)
        return next(e for e in self.experiments.values() if e["display_name"] == "Default")

    def create_recurring(self, body: Object) -> Object:
        """Creates a recurring run; its name may be that of another."""
        rules.check_schedule(body)
        failed = "Failed to create a recurring run"
        experiment = self._experiment_of(body, failed)
        spec, _ = self.spec_of(body, failed)
        given = body.get("runtime_config", {}).get("parameters", {})
        if words := rules.check_parameters(spec, given):
            raise ApiError(INVALID, f"{failed}: Invalid input error: {words}", words)
        now, enabled = self.time(), body.get("mode", "ENABLE") == "ENABLE"
        made = {
            "recurring_run_id": str(uuid.uuid4()),
            **_given(body, "display_name", "description", "pipeline_version_reference"),
            **_given(body, "pipeline_spec", "runtime_config", "trigger", "no_catchup"),
            "service_account": body.get("service_account") or _USUAL_ACCOUNT[self.multi_user],
            "max_concurrency": str(body["max_concurrency"]),
            "created_at": now,
            "namespace": experiment.get("namespace") or "kubeflow",
            "experiment_id": experiment["experiment_id"],
        }
        if periodic := made["trigger"].get("periodic_schedule"):
            periodic["interval_second"] = str(periodic["interval_second"])
        self.recurring[made["recurring_run_id"]] = made
        self.set_mode(made["recurring_run_id"], enabled=enabled, at=now)
        return made

    def recurring_run(self, key: str, failed: str) -> Object:
        """A recurring run by its id."""
        if key not in self.recurring:
            words = f"Job {key} not found"
            raise ApiError(NOT_FOUND, f"{failed}: ResourceNotFoundError: {words}", words)
        return self.recurring[key]

    def set_mode(self, key: str, *, enabled: bool, at: str = "") -> None:
        """Enables or disables a recurring run."""
        job = self.recurring_run(key, "Failed to change recurring run's mode")
        job["mode"] = "ENABLE" if enabled else "DISABLE"
        job["status"] = "ENABLED" if enabled else "DISABLED"
        job["updated_at"] = at or self.time()

    def delete_recurring(self, key: str, policy: str) -> None:
        """Deletes a recurring run; its Workflows go with it unless they are orphaned.

        A server before 2.16 knows no policy.
        """
        self.recurring_run(key, "Failed to delete a recurring run")
        del self.recurring[key]
        if policy != "ORPHAN" or self.version < "2.16":
            for run in self.runs.values():
                if run.recurring == key:
                    run.lose_workflow()

    def fire(self, key: str) -> Run:
        """Starts the run of a recurring run that is due."""
        job = self.recurring[key]
        body = {
            **_given(job, "pipeline_version_reference", "pipeline_spec", "runtime_config"),
            **_given(job, "experiment_id", "service_account"),
            "display_name": f"{job['display_name']}-{_suffix()}",
        }
        return self.create_run(body, recurring=key)


def _suffix() -> str:
    return uuid.uuid4().hex[:5]


def _given(body: Any, *names: str) -> Object:
    """Those of some fields that say something: an answer leaves the others out."""
    return {name: body[name] for name in names if body.get(name)}


def _is(experiment: Object, name: str, namespace: str) -> bool:
    return (experiment["display_name"], experiment.get("namespace", "")) == (name, namespace)


def _named(pipeline: Object, name: str, namespace: str) -> bool:
    return (pipeline["name"], pipeline.get("namespace", "")) == (name, namespace)
