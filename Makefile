# Everything a developer or CI does. A fresh machine needs Python 3.11, Java 17 (for Spark) and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 1000
FLIPS ?= 1000
JOBS ?= 2
FAST ?=
CLIENTS ?= 2000
export PYTHONDONTWRITEBYTECODE ?=

.DEFAULT_GOAL := help
.PHONY: help install format check test examples sim process flips fuzz slow interop bench demo proto chromium clean

help:  ## Show the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@echo "==> setting up $(VENV) (once; needs a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## Make the virtual environment and install everything into it

format: $(STAMP)  ## Format the code and sort its imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

check: $(STAMP)  ## Lint, types, import rules, determinism, sizes, prose, documents, generated code
	@echo "==> ruff";           $(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	@echo "==> mypy";           $(BIN)/mypy
	@echo "==> import rules";   $(BIN)/lint-imports
	@echo "==> determinism";    $(BIN)/python tools/check_determinism.py
	@echo "==> sizes";          $(BIN)/python tools/check_size.py
	@echo "==> prose";          $(BIN)/python tools/check_prose.py
	@echo "==> tests";          $(BIN)/python tools/check_tests.py
	@echo "==> documents";      $(BIN)/python tools/check_docs.py
	@echo "==> generated code"; $(BIN)/python tools/generate_proto.py --check && $(BIN)/python tools/generate_admin.py --check

test: $(STAMP)  ## Unit, property, conformance, simulation and Spark tests, JOBS=n at a time
	@echo "==> tests"
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests --ignore tests/process --ignore tests/interop --ignore tests/examples

examples: $(STAMP)  ## The example of Declarative Pipelines, as its users run it; FAST=1: a dry run
	$(BIN)/python -m pytest tests/examples $(if $(FAST),-k dry_run)

sim: $(STAMP)  ## Whole-cluster simulation, SEEDS=n runs, JOBS=n at a time
	$(BIN)/python -m anabranch.testing.simulation.run --seeds $(SEEDS) --jobs $(JOBS)

chromium:  ## Install Chromium, for the tests with web pages (Debian, as root); ANABRANCH_CHROMIUM names another
	@command -v $${ANABRANCH_CHROMIUM:-chromium} > /dev/null || { echo "==> installing Chromium"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium \
		> /dev/null; } || echo "Chromium could not be installed; the tests with web pages will fail"

process: $(STAMP) chromium  ## Real broker processes, killed at every step of every operation
	$(BIN)/python -m pytest tests/process

flips: $(STAMP)  ## Flip random bits in stores and metadata, FLIPS=n of them, and judge what is left
	FLIPS=$(FLIPS) $(BIN)/python -m pytest tests/unit/ledger/test_random_damage.py tests/unit/metadata/test_metadata_damage.py

fuzz: $(STAMP)  ## Fuzz decoders, a live broker, recovery and REST bodies; FAST=1 takes a minute
	$(BIN)/python -m tests.fuzz.run $(if $(FAST),--fast)

slow: $(STAMP)  ## A canary beside CLIENTS=n slow clients of each kind: silent, half a frame, never reading...
	$(BIN)/python -m tests.slow.run --clients $(CLIENTS)

interop: $(STAMP)  ## The official Python, Go and Java clients against our broker, and Spark on Pulsar; FAST=1: the short form
	$(if $(FAST),INTEROP_FAST=1 PULSAR_VERSIONS=5.0.0-M1) $(BIN)/python -m pytest tests/interop

bench: $(STAMP)  ## Measure beside the official client; writes build/bench.json
	$(BIN)/anabranch bench all $(if $(FAST),--fast)

demo: $(STAMP)  ## The main job: publish, split, kill, merge, consume, Spark; FAST=1 for the short form
	$(BIN)/python examples/demo.py $(if $(FAST),--fast)

proto: $(STAMP)  ## Generate the protobuf code again
	$(BIN)/python tools/generate_proto.py

clean:  ## Remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
