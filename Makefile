# Every target makes .venv and installs what it needs; a second call finds the stamp and starts at once.
# Needs on the machine: CPython >= 3.11 with venv and pip, GNU make, a C compiler. PYTHON=python3.13 chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DOCS_READY := $(VENV)/.docs-installed
BENCH_VENV := .bench-venv
BENCH_READY := $(BENCH_VENV)/.installed
BENCH ?= images text video
MOSAIC_VENV := .mosaic-venv
MOSAIC_READY := $(MOSAIC_VENV)/.installed
RECIPES_VENV := .recipes-venv
RECIPES_READY := $(RECIPES_VENV)/.installed
RECIPES := tests/test_coming_from.py tests/e2e/test_torchtitan.py
RECIPE_PAGES := torchtitan or coming-from
EACH_PUSH := not slow and not gpu and not lint
LINTS := tests/test_house.py tests/test_door.py tests/test_documents.py tests/test_references.py tests/test_examples.py

demo ui: export SPIRAL_DATA_ROOT ?= $(CURDIR)/demo
demo ui: export SPIRAL_CATALOG ?= $(SPIRAL_DATA_ROOT)/catalog
demo ui: export SPIRAL_CACHE ?= $(SPIRAL_DATA_ROOT)/caches
demo ui: export DAGSTER_HOME ?= $(CURDIR)/dagster_home
demo ui: export DAGSTER_DISABLE_TELEMETRY := 1

# A Dagster home of your own that has no settings yet gets the demo's, whose pools and retries its jobs rely on.
HOME_READY = @mkdir -p "$$DAGSTER_HOME" && { test -e "$$DAGSTER_HOME/dagster.yaml" || cp dagster_home/dagster.yaml "$$DAGSTER_HOME"; }

.PHONY: help install demo test test-nightly test-anywhere test-gpu recipes coverage check bench bench-mosaic ui docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

install: $(READY)  ## make .venv with everything in it

demo: $(READY)  ## images, text, video: run the Dagster job, train, kill, resume (ONLY=video; IMAGES=<folder of class folders>)
	$(HOME_READY)
	$(BIN)/python -m spiral_assets.demo $(if $(ONLY),--only $(ONLY)) $(if $(IMAGES),--images "$(IMAGES)")

test: $(READY)  ## run the tests that CI runs, as many at a time as there are cores
	$(BIN)/python -m pytest -n auto --dist worksteal -m "$(EACH_PUSH)"

test-nightly: $(READY)  ## run everything: slow tests, the demo, each document, a thousand examples of each law
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n auto --dist worksteal --timeout 7200 -m "not gpu"
	$(MAKE) recipes

recipes: $(RECIPES_READY)  ## run what needs other trainers and loaders, with their packages (torchtitan, Megatron-Energon, Grain)
	$(RECIPES_VENV)/bin/python -m pytest -n auto --dist worksteal -m "not gpu" $(RECIPES)
	$(RECIPES_VENV)/bin/python -m pytest -n 0 -m "not gpu and not lint" -k "$(RECIPE_PAGES)" tests/test_documents.py

test-anywhere: $(READY)  ## run tests under conditions of other machines (CONDITION=umask-077; WHOLE=1 runs the whole suite under each)
	VENV=$(VENV) $(BIN)/python .ci/anywhere $(CONDITION) $(if $(WHOLE),--whole)

test-gpu: $(READY)  ## run the tests of the path to a GPU, on a machine that has one
	$(BIN)/python -m pytest -n 0 -m gpu tests/gpu

coverage: $(READY)  ## run the tests that CI runs and list the lines and branches that none of them reaches
	$(BIN)/python -m pytest -n auto --dist worksteal -m "$(EACH_PUSH)" --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

check: $(READY)  ## formatting, lint, types, import contract, and what documents say
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 0 -q -m lint $(LINTS)

bench: $(BENCH_READY)  ## images, text and video per CPU second beside the peers; writes docs/benchmarks (BENCH=text BENCH_ARGS="--repeats 7")
	for theme in $(BENCH); do $(BENCH_VENV)/bin/python -m benchmarks.$$theme $(BENCH_ARGS); done

bench-mosaic: $(MOSAIC_READY)  ## install Mosaic, whose pins exclude ours, for `make bench BENCH=text` (6 GB)

# A background job of a shell ignores SIGINT; Dagster would ignore SIGTERM too, and nothing but SIGKILL would end it.
ui: $(READY)  ## open Dagster on the demo's assets, whose data is written if it is not there (PORT=3001)
	$(HOME_READY)
	$(BIN)/python -m spiral_assets.demo --data
	env --default-signal=INT $(BIN)/dg dev -w workspace.yaml $(if $(PORT),--port "$(PORT)")

docs: $(DOCS_READY)  ## build the site in build/site, fail on a broken link, and run the documents' code
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m pytest -m "not gpu" tests/test_documents.py tests/test_references.py tests/test_examples.py

clean:  ## remove what the targets made, except your data
	rm -rf $(VENV) $(BENCH_VENV) $(MOSAIC_VENV) $(RECIPES_VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find spiral_stream spiral_assets tests benchmarks \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +

# The interpreter is looked for only when a virtual environment has to be made.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3.11 python3 python); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "make: no CPython >= 3.11 is on the path (tried $(or $(PYTHON),python3.11 python3 python)). Install one with its venv module" >&2; exit 1

$(READY): pyproject.toml setup.py $(shell find spiral_stream -name '*.[ch]') | $(BIN)/python
	@echo "installing Spiral into $(VENV): some minutes the first time"
	find spiral_stream -name '_*.so' ! -name '*.abi3.so' -delete  # rooms built for one version hide those of the stable ABI
	$(BIN)/python -m pip install --disable-pip-version-check -qq -e '.[dev]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --disable-pip-version-check -qq -e '.[docs]'
	touch $@

# The peers lie in environments of their own that see .venv behind them: what both need is installed once, and a
# peer that pins an older version gets it without touching ours.
$(BENCH_READY) $(RECIPES_READY): pyproject.toml $(READY)
	$(BIN)/python -m venv $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/spiral.pth"
	$(@D)/bin/python -m pip install --disable-pip-version-check -qq -e '.[$(@D:.%-venv=%)]'
	touch $@

$(MOSAIC_READY): benchmarks/requirements-mosaic.txt | $(BIN)/python
	$(BIN)/python -m venv $(MOSAIC_VENV)
	$(MOSAIC_VENV)/bin/python -m pip install --disable-pip-version-check -qq -r benchmarks/requirements-mosaic.txt
	touch $@
