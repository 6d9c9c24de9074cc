"""A cluster's controllers with KServe, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.objects.inference import quick_runtime

from kfp_pytorch.launcher.constants import SERVING_RUNTIME
from kfp_pytorch.local.controllers.kserve.controller import InferenceServiceController
from kfp_pytorch.local.controllers.kubernetes.autoscaler import AutoscalerController
from kfp_pytorch.local.controllers.kubernetes.deployment import DeploymentController

Story = Callable[[Any], Awaitable[None]]


@pytest.fixture
def on_kserve(on_controllers: Callable[..., None]) -> Callable[..., None]:
    """Runs a story on a cluster with KServe, our runtime's name and a server that starts fast."""

    def run(story: Story, **cluster: Any) -> None:
        async def with_kserve(cluster: Any) -> None:
            cluster.api.create(SERVING_RUNTIME, quick_runtime())
            controllers = [
                asyncio.create_task(DeploymentController(cluster.api).run()),
                asyncio.create_task(
                    InferenceServiceController(cluster.api, cluster.ports, cluster.requests).run()
                ),
                asyncio.create_task(AutoscalerController(cluster.api, 0.5).run()),
            ]
            try:
                await story(cluster)
            finally:
                for each in controllers:
                    each.cancel()
                await asyncio.gather(*controllers, return_exceptions=True)

        on_controllers(with_kserve, **cluster)

    return run
