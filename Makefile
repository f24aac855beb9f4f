# One word each: make, make test, make lint, make signoff, make bench. `make help` lists them.
#
#   PYTHON=python3    the interpreter that .venv is made from; if it has a GPU torch, .venv lies over it
#   ENV=venv          or `current`: use PYTHON as it is and install nothing
#   DEVICE=           cpu or cuda; left out, the GPU if torch sees one
#   PROFILE=quick     what signoff and cells sweep; a nightly has its own
#   MODEL=            what signoff, matrix and cells serve in place of the profile's model
#   ARGS=             passed on: make signoff ARGS="--level 3 --mode FULL", make test ARGS="-k ladder"

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
ENV ?= venv
DEVICE ?=
PROFILE ?= quick
MODEL ?=
ARGS ?=
# Wall-clock seconds after which `make test` stops and fails.
TEST_BUDGET_S ?= 1500
TEST_WORKERS ?= 2

ifeq ($(ENV),venv)
  PY := .venv/bin/python
  SETUP = $(PYTHON) -m tools.bootstrap $(if $(DEVICE),--device $(DEVICE))
else ifeq ($(ENV),current)
  PY := $(PYTHON)
  SETUP = $(PYTHON) -m tools.bootstrap --current --need $(NEED)
else
  $(error ENV=$(ENV): choose venv (the default) or current)
endif
NEED := core
IMPORT_RULES = $(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo
ON_DEVICE := $(if $(DEVICE),--device $(DEVICE))
SERVING := $(if $(MODEL),--model '$(MODEL)')

.PHONY: help env test proofs lint fmt signoff matrix cells bench nightly clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@sed -n '3,9s/^#  */  /p' $(firstword $(MAKEFILE_LIST))

env: ## make .venv if it is not there, or is not for this checkout and this machine
	@$(SETUP)

test: NEED := test
test: env ## import rules, then every suite but asv's, within TEST_BUDGET_S
	@$(IMPORT_RULES)
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile --session-timeout=$(TEST_BUDGET_S) $(ON_DEVICE) $(ARGS)

proofs: NEED := test
proofs: env ## the slow proofs: a planted slowdown is found by a comparison of revisions
	@$(PY) -m pytest suites/proofs $(ON_DEVICE) $(ARGS)

lint: NEED := all
lint: env ## ruff, mypy and the import rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(IMPORT_RULES)

fmt: NEED := all
fmt: env ## format, and fix what ruff can fix
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

signoff: env ## sweep PROFILE and end in one verdict
	@$(PY) -m harness signoff --profile $(PROFILE) $(SERVING) $(ON_DEVICE) $(ARGS)

matrix: env ## every level under every graph mode, at every bucket edge
	@$(PY) -m harness signoff --profile matrix $(SERVING) $(ON_DEVICE) $(ARGS)

cells: env ## print the matrix of PROFILE and where every batch size runs
	@$(PY) -m harness cells --profile $(PROFILE) $(SERVING) $(ARGS)

bench: NEED := bench
bench: env ## record what decode steps and starts of this commit cost with asv
	@$(PY) -m asv run --python=same --set-commit-hash "$$(git rev-parse HEAD)" --show-stderr $(ARGS)

nightly: NEED := bench
nightly: PROFILE := nightly
nightly: env ## measure and judge PROFILE, make asv's pages, and look back over every stored night
	@$(PY) -m harness nightly --profile $(PROFILE) $(ON_DEVICE) $(ARGS)

clean: ## remove caches and build leftovers; .venv and results stay
	rm -rf build dist .asv .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
