"""The paths of KFP's API, version v2beta1, and the two that give a step's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.kfp_api import listing, rules
from harness.kfp_api.argo import FAILED, SUCCEEDED
from harness.kfp_api.errors import ApiError
from harness.kfp_api.store import Store
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

Object = dict[str, Any]
V2 = "/apis/v2beta1"
Answer = Callable[[Request], Any]


class Api:
    """Answers from a store.

    Attributes:
        advances: How many reports of its Workflow, ten seconds apart, a look at a run brings.
        logs_at: Which path has the logs of steps: `api`, `ui`, or neither.
        late: In how many looks a run that has ended has the tasks of the report before: KFP writes
            a run's state first, and its tasks a little later.
    """

    def __init__(
        self, store: Store, *, advances: int = 1, logs_at: str = "api", late: int = 0
    ) -> None:
        self.store, self.advances, self.logs_at, self.late = store, advances, logs_at, late
        self._tasks: Object = {}

    def healthz(self, request: Request) -> Object:
        """The version."""
        return {
            "commit_sha": "unknown",
            "tag_name": self.store.version,
            "multi_user": self.store.multi_user,
            "pipeline_store": "database",
        }

    # Experiments.

    async def create_experiment(self, request: Request) -> Object:
        return self.store.create_experiment(await _body(request, "V2beta1Experiment"))

    def get_experiment(self, request: Request) -> Object:
        return self.store.experiment(request.path_params["id"])

    def list_experiments(self, request: Request) -> Object:
        found = self._within(request, self.store.experiments.values(), "An experiment")
        return _page("experiments", "experiments", "experiment_id", found, request)

    def archive_experiment(self, request: Request) -> Object:
        archived = request.url.path.endswith(":archive")
        state = "ARCHIVED" if archived else "AVAILABLE"
        self.store.experiment(request.path_params["id"])["storage_state"] = state
        return {}

    # Pipelines.

    async def create_pipeline(self, request: Request) -> Object:
        return self.store.create_pipeline(await _body(request, "V2beta1Pipeline"))

    async def upload(self, request: Request) -> Object:
        return self.store.upload(*await _file(request), dict(request.query_params))

    async def upload_version(self, request: Request) -> Object:
        return self.store.upload_version(*await _file(request), dict(request.query_params))

    def get_pipeline(self, request: Request) -> Object:
        return self.store.pipeline(request.path_params["id"])

    def get_pipeline_named(self, request: Request) -> Object:
        namespace = request.query_params.get("namespace", "")
        return self.store.pipeline_named(request.path_params["name"], namespace)

    def list_pipelines(self, request: Request) -> Object:
        namespace = request.query_params.get("namespace", "")
        found = [p for p in self.store.pipelines.values() if p.get("namespace", "") == namespace]
        return _page("pipelines", "pipelines", "pipeline_id", found, request)

    def delete_pipeline(self, request: Request) -> Object:
        cascade = request.query_params.get("cascade", "").lower() == "true"
        self.store.delete_pipeline(request.path_params["id"], cascade=cascade)
        return {}

    def get_version(self, request: Request) -> Object:
        return self.store.version_of(request.path_params["id"], request.path_params["version"])

    def list_versions(self, request: Request) -> Object:
        found = self.store.versions_of(request.path_params["id"])
        kind = "pipeline_versions"
        return _page(kind, kind, "pipeline_version_id", found, request)

    # Runs.

    async def create_run(self, request: Request) -> Object:
        return self.store.create_run(await _body(request, "V2beta1Run")).answer()

    def get_run(self, request: Request) -> Object:
        key = request.path_params["id"]
        run = self.store.run(key, f"Failed to get a run: Failed to fetch run {key}")
        answer = run.answer()
        for _ in range(self.advances):
            self.store.advance(run)
        if answer["state"] not in (SUCCEEDED, FAILED):
            self._tasks = answer.get("run_details", {})
        elif self.late:
            self.late -= 1
            answer["run_details"] = self._tasks
        return answer

    def list_runs(self, request: Request) -> Object:
        runs = [run.answer() for run in self.store.runs.values()]
        if experiment := request.query_params.get("experiment_id"):
            runs = [run for run in runs if run["experiment_id"] == experiment]
        elif self.store.multi_user:
            namespace = request.query_params.get("namespace", "")
            self.store.check_namespace(namespace, "A run")
            runs = [run for run in runs if self._namespace(run) == namespace]
        return _page("runs", "runs", "run_id", runs, request)

    def act_on_run(self, request: Request) -> Object:
        key, _, verb = request.path_params["id"].partition(":")
        run = self.store.run(key, f"Failed to {verb} a run: Failed to {verb} run {key}")
        if verb == "terminate":
            run.terminate()
        elif verb == "retry":
            run.retry(self.store.time())
        else:
            run.archived = verb == "archive"
        return {}

    def delete_run(self, request: Request) -> Object:
        key = request.path_params["id"]
        self.store.run(key, f"Failed to delete a run: Failed to delete run {key}")
        del self.store.runs[key]
        return {}

    # Recurring runs.

    async def create_recurring(self, request: Request) -> Object:
        return self.store.create_recurring(await _body(request, "V2beta1RecurringRun"))

    def get_recurring(self, request: Request) -> Object:
        return self.store.recurring_run(
            request.path_params["id"], "Failed to fetch a recurring run"
        )

    def list_recurring(self, request: Request) -> Object:
        found = self._within(request, self.store.recurring.values(), "a recurring run")
        return _page("jobs", "recurringRuns", "recurring_run_id", found, request)

    def act_on_recurring(self, request: Request) -> Object:
        key, _, verb = request.path_params["id"].partition(":")
        self.store.set_mode(key, enabled=verb == "enable")
        return {}

    def delete_recurring(self, request: Request) -> Object:
        policy = request.query_params.get("propagation_policy", "")
        self.store.delete_recurring(request.path_params["id"], policy)
        return {}

    # The logs of steps.

    def log(self, request: Request) -> Response:
        """The log, with 200 even where there is none, for the header is sent first."""
        run = self.store.runs.get(request.path_params["run"])
        text = run.log(request.path_params["node"]) if run and self.logs_at == "api" else None
        if self.logs_at != "api":
            return PlainTextResponse("Cannot GET", 404)
        if text is None:
            return JSONResponse(
                {"error_message": "Failed to read logs for run", "error_details": ""}
            )
        return PlainTextResponse(text)

    def log_of_the_ui(self, request: Request) -> Response:
        """The log as KFP's web UI gives it."""
        run = self.store.runs.get(request.query_params.get("runid", ""))
        if self.logs_at != "ui" or run is None:
            return PlainTextResponse("Cannot GET", 404)
        text = run.log(request.query_params.get("podname", ""))
        if text is None:
            return PlainTextResponse("Could not get main container logs: Error: not found", 500)
        return PlainTextResponse(text)

    def _within(self, request: Request, items: Any, what: str) -> list[Object]:
        """Those of the namespace or the experiment that a list is asked for."""
        namespace = request.query_params.get("namespace", "")
        if experiment := request.query_params.get("experiment_id"):
            return [each for each in items if each["experiment_id"] == experiment]
        if not self.store.multi_user:
            return list(items)
        self.store.check_namespace(namespace, what)
        return [each for each in items if each.get("namespace") == namespace]

    def _namespace(self, run: Object) -> str:
        return str(self.store.experiments[run["experiment_id"]].get("namespace", ""))


def app(api: Api) -> Starlette:
    """The application: every path of v2beta1 that `kfp.Client` uses."""
    routes = [
        ("GET", "/healthz", api.healthz),
        ("POST", "/experiments", api.create_experiment),
        ("GET", "/experiments", api.list_experiments),
        ("GET", "/experiments/{id}", api.get_experiment),
        ("POST", "/experiments/{id}:archive", api.archive_experiment),
        ("POST", "/experiments/{id}:unarchive", api.archive_experiment),
        ("POST", "/pipelines", api.create_pipeline),
        ("POST", "/pipelines/upload", api.upload),
        ("POST", "/pipelines/upload_version", api.upload_version),
        ("GET", "/pipelines", api.list_pipelines),
        ("GET", "/pipelines/names/{name}", api.get_pipeline_named),
        ("GET", "/pipelines/{id}", api.get_pipeline),
        ("DELETE", "/pipelines/{id}", api.delete_pipeline),
        ("GET", "/pipelines/{id}/versions", api.list_versions),
        ("GET", "/pipelines/{id}/versions/{version}", api.get_version),
        ("POST", "/runs", api.create_run),
        ("GET", "/runs", api.list_runs),
        ("GET", "/runs/{id}", api.get_run),
        ("POST", "/runs/{id}", api.act_on_run),
        ("DELETE", "/runs/{id}", api.delete_run),
        ("POST", "/recurringruns", api.create_recurring),
        ("GET", "/recurringruns", api.list_recurring),
        ("GET", "/recurringruns/{id}", api.get_recurring),
        ("POST", "/recurringruns/{id}", api.act_on_recurring),
        ("DELETE", "/recurringruns/{id}", api.delete_recurring),
    ]
    made = [Route(V2 + path, _answered(answer), methods=[verb]) for verb, path, answer in routes]
    log = "/apis/v1alpha1/runs/{run}/nodes/{node}/log"
    made += [Route(log, api.log), Route("/k8s/pod/logs", api.log_of_the_ui)]
    return Starlette(routes=made)


def _answered(answer: Answer) -> Any:
    async def endpoint(request: Request) -> Response:
        try:
            found = answer(request)
            body = await found if hasattr(found, "__await__") else found
        except ApiError as error:
            return JSONResponse(error.body(), error.status)
        return JSONResponse(body)

    return endpoint


async def _body(request: Request, model: str) -> Object:
    return rules.checked_body((await request.body()).decode(), model)


async def _file(request: Request) -> tuple[str, str]:
    """The text of an uploaded file, and its name."""
    form = await request.form()
    file: Any = form["uploadfile"]
    return (await file.read()).decode(), str(file.filename)


def _page(kind: str, name: str, key: str, items: Any, request: Request) -> Object:
    answer = listing.page(kind, key, list(items), dict(request.query_params))
    shown = answer.pop("items")
    return {name: shown, **answer} if shown else answer
