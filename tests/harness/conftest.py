"""A run on an API server with no controllers: steps have their pods, and nothing else happens."""

from __future__ import annotations

import pytest
from harness.kfp.steps import Where, workflow


@pytest.fixture
def where(api_server, tmp_path):
    return Where(tmp_path, api_server.kubeconfig, workflow(api_server.url, ""))
