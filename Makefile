# Everything runs in .venv; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TAG := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' kfp_pytorch/__init__.py)-make-images
DOCKER ?= docker
BUILD_ARGS ?=
# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-long lint format components compiled bench images tag wheels clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/kfp-pytorch run train_and_serve --local

# Eight at a time: many tests wait for a process more than they compute. In the order of
# tests/conftest.py: the files that take long begin first.
test: setup
	$(BIN)/pytest -m "not slow" --numprocesses 8 --dist loadfile --no-loadscope-reorder

test-long: setup
	$(BIN)/pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

components: setup
	$(BIN)/python -m kfp_pytorch.components.generate

# First what the steps of a pipeline read, then the pipelines, which ask for it.
compiled: components
	$(BIN)/python -c "from kfp_pytorch.components import bundle; bundle.write_manifest()"
	$(BIN)/kfp-pytorch compile --all --output compiled

bench: setup
	$(BIN)/python -m benchmarks

images:
	$(DOCKER) build $(BUILD_ARGS) --tag kfp-pytorch-launcher:$(TAG) --file launcher/Dockerfile .
	$(DOCKER) build $(BUILD_ARGS) --tag kfp-pytorch-training:$(TAG) --file training/Dockerfile .
	$(DOCKER) build $(BUILD_ARGS) --tag kfp-pytorch-serving:$(TAG) --file serving/Dockerfile .

# The tag of the images.
tag:
	@echo $(TAG)

# kfp-pytorch, and kfp-pytorch-launcher: what the steps of a pipeline install, and no more.
wheels: setup
	rm -rf build/launcher
	$(BIN)/python -c "from pathlib import Path; from kfp_pytorch.components import bundle; bundle.write_sources(Path('build/launcher'))"
	$(BIN)/python -m build --quiet --wheel --outdir dist .
	$(BIN)/python -m build --quiet --wheel --outdir dist build/launcher

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
