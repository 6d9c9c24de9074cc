"""`Client`: what a person does with pipelines on KFP, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click

from kfp_pytorch.client import cron as crons
from kfp_pytorch.client import pipelines, runs, schedules, starts
from kfp_pytorch.client.connection import Connection, Endpoint
from kfp_pytorch.client.errors import ClientError
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.pipelines import Version
from kfp_pytorch.client.runs import Run
from kfp_pytorch.client.schedules import Schedule, Trigger


class Client:
    """KFP, through `kfp.Client`: pipelines are checked before they are sent.

    A pipeline is a function under `@dsl.pipeline`, the path of a compiled YAML, `FILE.py:FUNCTION`,
    or the name of one that comes with kfp-pytorch. Every method raises `ClientError`, whose message
    says what is wrong and what to do; where KFP does not answer, after a minute.

    Args:
        host: KFP's URL; see `Endpoint`, also for where it is taken from when this is empty.
        namespace: The namespace of a multi-user KFP.
        endpoint: Further fields of `Endpoint`, such as `token_file` and `ca_file`.

    Attributes:
        connection: The connection; its `client` is the `kfp.Client`.
    """

    def __init__(self, host: str = "", *, namespace: str = "", **endpoint: str) -> None:
        self.connection = Connection(Endpoint(host, namespace, **endpoint))

    def upload(
        self, pipeline: Any, *, name: str = "", version: str = "", description: str = ""
    ) -> Version:
        """Upload a pipeline as a version, unless its content is there already.

        Args:
            pipeline: The pipeline.
            name: Of the pipeline in KFP; its own by default.
            version: The version's name; by default one that is made of the content.
            description: For a person; the pipeline's own by default.

        Returns:
            The version, and whether it was uploaded now.

        Raises:
            ClientError: the pipeline cannot work, or the version's name has another content.
        """
        package, _ = self._prepared(pipeline, None)
        return pipelines.upload(
            self.connection, package, name=name, version=version, description=description
        )

    def run(
        self,
        pipeline: Any,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        experiment: str = "",
        pipeline_root: str = "",
        service_account: str = "",
    ) -> Run:
        """Start a run.

        Args:
            pipeline: The pipeline.
            arguments: Its parameters by name; they are checked first.
            name: Of the run; the pipeline's with the time by default.
            experiment: The name of its experiment, which is made if there is none.
            pipeline_root: Where KFP keeps the artifacts, such as `s3://bucket/folder`.
            service_account: Of the steps' pods.

        Returns:
            The run, which has just begun; `wait` follows it.

        Raises:
            ClientError: an argument does not fit, or KFP refuses the run.
        """
        package, given = self._prepared(pipeline, arguments or {})
        return starts.start(
            self.connection,
            package,
            given,
            name=name,
            experiment=experiment,
            pipeline_root=pipeline_root,
            service_account=service_account,
        )

    def wait(
        self,
        run: Run | str,
        *,
        tell: Callable[[Run], None] | None = None,
    ) -> Run:
        """Follow a run to its end.

        Args:
            run: The run, or its id.
            tell: Is called with the run whenever it has changed.

        Returns:
            The run as it ended; if it failed, with the reason.

        Raises:
            NotFoundError: it was deleted.
        """
        run_id = run.run_id if isinstance(run, Run) else run
        seen: Run | None = None
        for seen in runs.follow(self.connection, run_id):
            if tell is not None:
                tell(seen)
        if seen is None:
            raise ClientError(f"Nothing was seen of run {run_id}.")
        return seen

    def get(self, run: str) -> Run:
        """Look at a run.

        Args:
            run: Its id, the beginning of one, its name, or `latest`.

        Returns:
            The run, with its steps, and the reason where it failed.

        Raises:
            NotFoundError: there is no such run.
        """
        return runs.get(self.connection, runs.find(self.connection, run), why=True)

    def runs(self, *, most: int = 20, experiment: str = "", schedule: str = "") -> list[Run]:
        """List runs, the newest first, without their steps.

        Args:
            most: How many at most; 0 for all.
            experiment: The name of an experiment; empty for all.
            schedule: The name of a schedule that started them; empty for all.

        Returns:
            The runs.
        """
        key = schedules.get(self.connection, schedule).schedule_id if schedule else ""
        return runs.newest(self.connection, most=most, experiment=experiment, schedule=key)

    def terminate(self, run: str) -> str:
        """End a run that goes on.

        Args:
            run: As `get` takes it.

        Returns:
            The run's id.

        Raises:
            ConflictError: it has ended.
        """
        found = runs.find(self.connection, run)
        runs.terminate(self.connection, found)
        return found

    def retry(self, run: str) -> str:
        """Run again what failed of a run; steps that succeeded are kept.

        Args:
            run: As `get` takes it.

        Returns:
            The run's id.

        Raises:
            ConflictError: it has not failed.
        """
        found = runs.find(self.connection, run)
        runs.retry(self.connection, found)
        return found

    def delete(self, run: str) -> str:
        """Delete a run, and what of it goes on.

        Args:
            run: As `get` takes it.

        Returns:
            The run's id.

        Raises:
            NotFoundError: there is no such run.
        """
        found = runs.find(self.connection, run)
        runs.delete(self.connection, found)
        return found

    def schedule(
        self,
        pipeline: Any,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        cron: str = "",
        every_s: int = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        max_concurrency: int = 1,
        catch_up: bool = False,
        enabled: bool = True,
        experiment: str = "",
        pipeline_root: str = "",
        service_account: str = "",
        description: str = "",
    ) -> Schedule:
        """Make the schedule of a name, or change it to this.

        Args:
            pipeline: The pipeline; it is uploaded.
            name: Of the schedule.
            arguments: The parameters of its runs by name; they are checked first.
            cron: When runs start: `minute hour day month weekday`, or six fields with the second
                first, in the time zone of KFP's controller, UTC unless its administrator chose one.
            every_s: In place of it, the seconds from one run to the next.
            start: Before that no run starts.
            end: After that no run starts.
            max_concurrency: How many of its runs there are at once, from 1 to 10.
            catch_up: Whether runs that were missed, as while it was disabled, are made up for.
            enabled: Whether it starts runs.
            experiment: The name of the experiment of its runs, which is made if there is none.
            pipeline_root: Where KFP keeps the artifacts.
            service_account: Of the steps' pods.
            description: For a person.

        Returns:
            The schedule, and what was done.

        Raises:
            ClientError: an argument or the time does not fit.
        """
        package, given = self._prepared(pipeline, arguments or {})
        trigger = Trigger(crons.read(cron) if cron else None, every_s, start, end)
        return schedules.apply(
            self.connection,
            package,
            given,
            name,
            trigger,
            max_concurrency=max_concurrency,
            catch_up=catch_up,
            enabled=enabled,
            experiment=experiment,
            pipeline_root=pipeline_root,
            service_account=service_account,
            description=description,
        )

    def schedules(self) -> list[Schedule]:
        """List all schedules, the newest first."""
        return schedules.listed(self.connection)

    def enable_schedule(self, name: str) -> Schedule:
        """Let the schedule of a name or id start runs. Raises NotFoundError."""
        return schedules.switch(self.connection, name, enabled=True)

    def disable_schedule(self, name: str) -> Schedule:
        """Let the schedule of a name or id start no further run. Raises NotFoundError."""
        return schedules.switch(self.connection, name, enabled=False)

    def delete_schedule(self, name: str, *, with_runs: bool = False) -> Schedule:
        """Delete the schedule of a name or id.

        Args:
            name: Its name or its id.
            with_runs: Whether its runs are ended with it.

        Returns:
            The schedule that was.

        Raises:
            NotFoundError: there is none. ClientError: this KFP cannot keep runs that go on.
        """
        return schedules.delete(self.connection, name, with_runs=with_runs)

    def _prepared(
        self, pipeline: Any, arguments: Mapping[str, Any] | None
    ) -> tuple[Package, dict[str, Any]]:
        """A pipeline's package and its arguments, both checked; with None those of no run."""
        from kfp_pytorch.client.packages import backends, checks, parameters

        package = pipelines.package_of(pipeline)
        given: dict[str, Any] = {}
        try:
            if arguments is not None:
                given = parameters.values(package, arguments)
                parameters.require(package, given)
            checks.check(package, given)
            backends.check(package, self.connection.version_info)
        except click.ClickException as error:
            raise ClientError(error.message) from None
        return package, given
