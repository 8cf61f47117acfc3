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
STOP ?=
CLIENTS ?= 2000
export PYTHONDONTWRITEBYTECODE ?=

.DEFAULT_GOAL := help
.PHONY: help install format check test examples sim process promises flips lowest fuzz sanitize slow programs interop engine cluster peers bench demo proto changelog chromium clean

help:  ## Show the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt $(wildcard csrc/*)
	@echo "==> setting up $(VENV) (once; needs a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## Make the virtual environment and install everything into it

format: $(STAMP)  ## Format the code and sort its imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

check: $(STAMP)  ## Lint, types, import rules, determinism, sizes, prose, documents, changes, generated code
	@echo "==> ruff";           $(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	@echo "==> mypy";           $(BIN)/python tools/snippets.py build/snippets && $(BIN)/mypy src simulation benchmarks tests examples tools build/snippets
	@echo "==> pyright";        $(BIN)/pyright
	@echo "==> import rules";   $(BIN)/lint-imports
	@echo "==> determinism";    $(BIN)/python tools/check_determinism.py
	@echo "==> sizes";          $(BIN)/python -m tools.check_size
	@echo "==> prose";          $(BIN)/python tools/check_prose.py
	@echo "==> words";          $(BIN)/python tools/check_words.py
	@echo "==> tests";          $(BIN)/python tools/check_tests.py
	@echo "==> documents";      $(BIN)/python tools/check_docs.py
	@echo "==> changes";        $(BIN)/towncrier build --draft --version next > build/changelog.txt 2>&1 || { cat build/changelog.txt; false; }
	@echo "==> generated code"; $(BIN)/python tools/generate_proto.py --check && $(BIN)/python tools/generate_admin.py --check

test: $(STAMP)  ## Unit, property, conformance, simulation and Spark tests, JOBS=n at a time
	@echo "==> tests"
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests --ignore tests/process --ignore tests/promises --ignore tests/interop --ignore tests/engine --ignore tests/examples

examples: $(STAMP)  ## The example of Declarative Pipelines, as its users run it; FAST=1: a dry run
	$(BIN)/python -m pytest tests/examples $(if $(FAST),-k dry_run)

sim: $(STAMP)  ## Whole-cluster simulation, SEEDS=n runs, JOBS=n at a time
	$(BIN)/python -m simulation.run --seeds $(SEEDS) --jobs $(JOBS)

chromium:  ## Install Chromium, for the tests with web pages (Debian, as root); ANABRANCH_CHROMIUM names another
	@command -v $${ANABRANCH_CHROMIUM:-chromium} > /dev/null || { echo "==> installing Chromium"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium \
		> /dev/null; } || echo "Chromium could not be installed; the tests with web pages will fail"

# Two at a time on any machine, because these tests mostly wait; those that measure time have no other one beside them.
# Chromium is no prerequisite: make -j would begin all other targets before a target that waits for another.
process: $(STAMP)  ## Real broker processes, killed at every step of every operation; FAST=1: a short run with Spark
	@$(MAKE) --no-print-directory chromium
	$(if $(FAST),SPARK_ROUNDS=1) $(BIN)/python -m pytest -n 2 --dist loadfile \
		-m 'not timed$(if $(FAST), and not long)' tests/process
	$(BIN)/python -m pytest -m timed tests/process

promises: $(STAMP)  ## One test for each promise of the README, against an installed wheel in a fresh environment
	$(BIN)/python -m pytest -n 2 tests/promises

flips: $(STAMP)  ## Flip random bits in stores and metadata, FLIPS=n of them, and judge what is left
	FLIPS=$(FLIPS) $(BIN)/python -m pytest tests/unit/ledger/test_random_damage.py tests/unit/metadata/test_metadata_damage.py

lowest: $(STAMP)  ## The wire and the client with the lowest protobuf that pyproject.toml allows
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/lowest \
		"protobuf==$$(sed -n 's/.*"protobuf>=\(.*\)".*/\1.0/p' pyproject.toml)"
	PYTHONPATH=build/lowest $(BIN)/python -m pytest tests/unit/protocol tests/unit/client/test_hostile_broker.py

fuzz: $(STAMP)  ## Fuzz decoders, a live broker, recovery and REST bodies; FAST=1 takes a minute
	$(BIN)/python -m tests.fuzz.run $(if $(FAST),--fast)

sanitize: $(STAMP)  ## The compiled functions under gcc's sanitizers
	$(BIN)/python tools/sanitize.py

slow: $(STAMP)  ## A canary beside CLIENTS=n slow clients of each kind: silent, half a frame, never reading...
	$(BIN)/python -m tests.slow.run --clients $(CLIENTS)

programs: $(STAMP)  ## Fetch the jars of Pulsar, and build the Java and Go programs of `interop` and `engine`
	@echo "==> jars of Pulsar, Java and Go programs (the first time some 500 MB)"
	@$(BIN)/python -m tests.interop.programs

interop: programs  ## The official Python, Go and Java clients against our broker, and Spark on Pulsar; FAST=1: the short form
	$(if $(FAST),INTEROP_FAST=1 PULSAR_VERSIONS=5.0.0-M1) $(BIN)/python -m pytest tests/interop $(if $(FAST),-m 'not long')

engine: programs  ## Our side of a cluster on real ZooKeeper and Pulsar processes (needs Java and Maven); FAST=1: the short form
	METADATA_STORES=zookeeper SEGMENT_HOSTS=pulsar ENGINES="$(if $(FAST),control-4.0.7,control-cluster control-5.0.0-M1)" $(BIN)/python -m pytest \
		tests/conformance/test_metadata.py tests/conformance/test_segments.py tests/engine \
		tests/interop/test_suite_*on_engines.py $(if $(FAST),-m 'not long')

cluster: $(STAMP)  ## A real Pulsar cluster until Ctrl-C: ZooKeeper, three bookies, two brokers, two control processes
	@exec $(BIN)/python -m simulation.harness.pulsar.run

peers: $(STAMP)  ## Fetch the peers of the benchmarks and start Kafka, which syncs every append; STOP=1 ends it
	$(if $(STOP),,$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' \
		|| echo "some clients of peers could not be installed; the comparison leaves them out")
	$(BIN)/python -m benchmarks.peers.starting $(if $(STOP),stop)

bench: $(STAMP)  ## Measure beside Kafka's and Pulsar's clients in one run; writes build/bench.json
	$(BIN)/python -m benchmarks all $(if $(FAST),--fast)

demo: $(STAMP)  ## The main job: publish, split, kill, merge, consume, Spark; FAST=1 for the short form
	$(BIN)/python -m examples.demo $(if $(FAST),--fast)

proto: $(STAMP)  ## Generate the protobuf code again
	$(BIN)/python tools/generate_proto.py

changelog: $(STAMP)  ## Show the release notes that the fragments in changes/ make so far
	@$(BIN)/towncrier build --draft --version next

clean:  ## Remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
