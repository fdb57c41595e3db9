# Each target makes the environment that it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
PEERS := .venv-peers

.PHONY: help demo example-periodic example-inventory example-leaderboard example-django example-kubernetes test faults fleet topologies lint format bench bench-peers docs wheel-test release-check matrix clean

help:
	@echo "make demo        a fleet without and with the lock, side by side"
	@echo "make example-periodic, example-inventory, example-leaderboard, example-django: code to copy"
	@echo "make example-kubernetes: the manifests checked, and their containers run as processes"
	@echo "make test        all tests"
	@echo "make faults      every way to end a worker, measured into docs/faults.md"
	@echo "make fleet       what Kubernetes does to a fleet under load, measured into docs/kubernetes.md"
	@echo "make topologies  faults of the lock server, behind Sentinel and in a Cluster too, measured into docs/deployments.md"
	@echo "make lint        ruff, mypy --strict and luacheck"
	@echo "make bench       how fast it is: beside redis.lock.Lock, after a kill, from hand to hand"
	@echo "make matrix      the tests of the lock on the oldest and the newest Python, Celery and redis-py"
	@echo "make bench-peers beside other locks for Celery, measured into docs/comparison.md"
	@echo "make docs        the pages of docs/ as a site, in site/"
	@echo "make release-check sdist and wheel: built, checked, installed away from this tree, tried"
	@echo "make wheel-test  the wheel, installed away from this tree, against the tests of the lock"

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

example-periodic: $(VENV)/.examples
	$(BIN)/python -m examples.periodic

example-inventory: $(VENV)/.examples
	$(BIN)/python -m examples.inventory

example-leaderboard: $(VENV)/.examples
	$(BIN)/python -m examples.leaderboard

# There is no cluster here: the containers' own commands, probes and ACL file run as processes.
example-kubernetes: $(VENV)/.test
	$(PYTEST) -q -n $(WORKERS) tests/kubernetes

example-django: $(VENV)/.examples
	$(BIN)/python -m examples.django

test: $(VENV)/.test
	$(PYTEST) -n $(WORKERS) --dist loadfile $(ARGS)

faults: $(VENV)/.test
	CELERY_RLOCK_FAULTS_TABLE=docs/faults.md $(PYTEST) -p no:xdist tests/faults
	@cat docs/faults.md

fleet: $(VENV)/.test
	CELERY_RLOCK_FLEET_TABLE=docs/kubernetes.md $(PYTEST) -p no:xdist tests/fleet

topologies: $(VENV)/.test
	CELERY_RLOCK_TOPOLOGIES_TABLE=docs/deployments.md $(PYTEST) -p no:xdist tests/topologies

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v luacheck >/dev/null; then luacheck --std lua51 --read-globals redis KEYS ARGV -- lua examples; \
	else echo "luacheck is not installed: the Lua files are not checked"; fi

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.cycle
	$(BIN)/python -m benchmarks.crash
	$(BIN)/python -m benchmarks.handover
	$(BIN)/python -m benchmarks.listing

# The peers have an environment of their own: they are nobody's dependency here.
bench-peers: $(PEERS)/.peers
	$(PEERS)/bin/python -m benchmarks.peers docs/comparison.md

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: $(VENV)/.test $(VENV)/.release
	PYTHON=$(BIN)/python .ci/release-check

wheel-test: $(VENV)/.test
	PYTHON=$(BIN)/python .ci/wheel-test

matrix:
	$(PYTHON) .ci/matrix

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(PEERS)/.peers: pyproject.toml benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]' -r benchmarks/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(PEERS) site .pytest_cache .mypy_cache .ruff_cache .hypothesis dist demo-timeline.*
