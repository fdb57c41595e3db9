# Every target makes the environment that it needs, in .venv, and keeps it until pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait more than they compute: four at a time left a fifth of two cores idle.
WORKERS ?= 5
# Where this is set, each process that the tests start compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=
PEERS := .venv-peers

INSTALL := -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
PARALLEL := $(PYTEST) -n $(WORKERS) --dist loadfile

.PHONY: help demo examples example-periodic example-limits example-search-index example-inventory \
	example-leaderboard example-django example-kubernetes test test-all interleavings nemesis soak mutants \
	conformance faults fleet topologies lint format bench bench-peers docs setup \
	release-check matrix clean

help:
	@echo "Start here:"
	@echo "make demo           run a small fleet without the lock and with it, and compare"
	@echo "make examples       run every example; or one of example-periodic, example-limits,"
	@echo "                    example-search-index, example-inventory, example-leaderboard,"
	@echo "                    example-django, example-kubernetes"
	@echo
	@echo "Work on the code:"
	@echo "make test           run the tests that a change needs, about five minutes; ARGS='-k renewal' selects some"
	@echo "make test-all       run all tests, the slow ones too, as CI does: about eleven minutes"
	@echo "make interleavings  try the orders of steps of the lock's processes as CI does, about a minute; for more:"
	@echo "                    make interleavings ARGS='--faults 2 --delays 1 --states 500000'"
	@echo "make nemesis        plague processes and fleets with faults, and check what they wrote down; then try more"
	@echo "                    random input, and test the lock with the least rights: make nemesis SEED=7 MINUTES=60"
	@echo "make soak           load with faults for MINUTES=30: memory, connections and Redis keys must stay flat"
	@echo "make mutants        change the scripts and the code in small ways, and see whether the tests find it; hours:"
	@echo "                    make mutants ARGS='lua/release.lua core/lease.py --sample 0.1'"
	@echo "make lint           run ruff, mypy, pyright and luacheck"
	@echo "make format         let ruff fix what it can"
	@echo "make docs           build the documentation into site/"
	@echo
	@echo "Measure:"
	@echo "make bench          measure how the cost of the lock grows, and update docs/scaling.md"
	@echo "make bench-peers    measure other locks for Celery too, and update docs/comparison.md and waiting.md"
	@echo "make conformance    compare locked tasks with plain ones, and update docs/conformance.md"
	@echo "make faults         end workers in every way, and update docs/faults.md"
	@echo "make fleet          do to a fleet what Kubernetes does, and update docs/kubernetes.md"
	@echo "make topologies     break the lock server, Sentinel and Cluster too, and update docs/deployments.md"
	@echo
	@echo "Before a release:"
	@echo "make matrix         test the wheel on the oldest and newest Python, Celery and redis-py"
	@echo "make release-check  build the package, install it into an empty environment, follow the README"
	@echo "make clean          remove environments and everything else that these targets made"

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

examples: example-periodic example-limits example-search-index example-inventory example-leaderboard example-django example-kubernetes

example-periodic: $(VENV)/.examples
	$(BIN)/python -m examples.periodic

example-limits: $(VENV)/.examples
	$(BIN)/python -m examples.limits

example-search-index: $(VENV)/.examples
	$(BIN)/python -m examples.search_index

example-inventory: $(VENV)/.examples
	$(BIN)/python -m examples.inventory

example-leaderboard: $(VENV)/.examples
	$(BIN)/python -m examples.leaderboard

example-django: $(VENV)/.examples
	$(BIN)/python -m examples.django

# This needs no cluster: the tests run the containers' commands, probes and ACL file as processes.
example-kubernetes: $(VENV)/.test
	$(PYTEST) -q -n $(WORKERS) tests/faults/kubernetes

test: $(VENV)/.test
	$(PARALLEL) -m "not slow" $(ARGS)

test-all: $(VENV)/.test
	$(PARALLEL) $(ARGS)

interleavings: $(VENV)/.test
	$(BIN)/python -m tests.interleavings $(ARGS)

# A violation ends this before the rest. ARGS='--world fleet --setup sentinel' narrows the worlds.
SEED ?= 1
MINUTES ?= 30
FUZZ ?= 2000
FUZZ_ROUNDS ?= 50
nemesis: $(VENV)/.test
	$(BIN)/python -m tests.nemesis --seed $(SEED) --minutes $(MINUTES) $(ARGS)
	CELERY_RLOCK_FUZZ=$(FUZZ) RLOCK_FUZZ_ROUNDS=$(FUZZ_ROUNDS) $(PARALLEL) --timeout 3600 -k fuzz \
		tests/unit tests/cli tests/worker/test_fuzzed.py
	CELERY_RLOCK_LEAST_RIGHTS=1 $(PARALLEL) tests/redis

soak: $(VENV)/.test
	$(BIN)/python -m tests.nemesis.soak --seed $(SEED) --minutes $(MINUTES) $(ARGS)

mutants: $(VENV)/.test
	$(BIN)/python -m tests.mutants $(ARGS)

conformance: $(VENV)/.test
	CELERY_RLOCK_CONFORMANCE_TABLE=docs/conformance.md $(PYTEST) -p no:xdist tests/conformance

faults: $(VENV)/.test
	CELERY_RLOCK_FAULTS_TABLE=docs/faults.md $(PYTEST) -p no:xdist tests/faults/worker
	@cat docs/faults.md

fleet: $(VENV)/.test
	CELERY_RLOCK_FLEET_TABLE=docs/kubernetes.md $(PYTEST) -p no:xdist tests/faults/kubernetes

topologies: $(VENV)/.test
	CELERY_RLOCK_TOPOLOGIES_TABLE=docs/deployments.md $(PYTEST) -p no:xdist tests/faults/topology

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python tests/typing/right.py
	@if command -v luacheck >/dev/null; then luacheck --std lua51 --read-globals redis KEYS ARGV -- lua examples; \
	else echo "luacheck is not installed, so the Lua files are not checked"; fi

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.growth docs/scaling.md
	$(BIN)/python -m benchmarks.traffic docs/scaling.md
	$(BIN)/python -m benchmarks.crash
	$(BIN)/python -m benchmarks.listing

# The other locks have an environment of their own, because they are not our dependencies. Each benchmark writes
# its own part of the pages: after an interruption, run the missing ones with BENCHMARKS="handover cycle".
BENCHMARKS ?= peers_cost cycle handover peers_behaviour
bench-peers: $(PEERS)/.peers
	for benchmark in $(BENCHMARKS); do \
		$(PEERS)/bin/python -m benchmarks.$$benchmark docs/comparison.md docs/waiting.md || exit 1; \
	done

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: $(VENV)/.demo $(VENV)/.release
	PYTHON=$(BIN)/python .ci/release-check

matrix: $(VENV)/.pip
	$(BIN)/python .ci/matrix.py

# CI needs all groups. To install them at once is faster than one after the other.
setup: $(VENV)/.pip
	$(BIN)/python $(INSTALL) --group lint --group docs --group release --editable '.[cli,metrics,testing]'
	@touch $(addprefix $(VENV)/.,demo examples test lint docs release)

# Dependency groups need pip 25.1; Python 3.11 brings pip 23.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.%: pyproject.toml | $(VENV)/.pip
	$(BIN)/python $(INSTALL) --group $* --editable '.[cli,metrics,testing]'
	@touch $@

$(PEERS)/.peers: pyproject.toml benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(PEERS)/bin/python $(INSTALL) --group demo --editable '.[cli]' -r benchmarks/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(PEERS) site dist .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis demo-timeline.* nemesis-results
