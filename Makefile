# The two commands of the README, and the ones beside them. Everything is installed into .venv.

PYTHON ?= python3
VENV ?= .venv
# Test files that run at a time. Many wait, for processes or deadlines, more than they compute.
JOBS ?= 4
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Tests start hundreds of processes, each of which would compile this project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install quickstart test test-all test-cluster lint format clean

help:
	@echo "make quickstart   install, tokenize, train, resume, evaluate and generate on this machine's CPU"
	@echo "make test         install what the tests need and run them (about 6 minutes on 2 cores)"
	@echo "make test-all     the slow tests too"
	@echo "make test-cluster what needs two hosts, which root makes on this machine from Debian packages"
	@echo "make lint         ruff and mypy"
	@echo "make format       let ruff lay the code out"

install: $(VENV)/.installed

$(VENV)/.installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed-tests: $(VENV)/.installed tests/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt -r tests/requirements.txt
	@touch $@

quickstart: $(VENV)/.installed
	@$(BIN)/python tools/quickstart/quickstart.py

# The property tests try the same inputs every time here, and new ones in test-all: whether a change
# may land must not depend on luck, and looking for new failures must not stop.
test: lint
	$(PYTEST) -m "not slow and not cluster" --hypothesis-profile=ci

test-all: lint
	$(PYTEST) -m "not cluster"

# Each process has a pair of hosts of its own. What is skipped says why, and which packages are missing.
test-cluster: $(VENV)/.installed-tests
	$(PYTEST) tests/cluster -rs

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache quickstart_run
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
