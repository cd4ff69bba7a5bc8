# dtopk. `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-input -c constraints.txt

PIP_WHEEL := $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps

TRAIN_ARGS ?=
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2
DRILL_ARGS ?= --short
PIP_AUDIT ?= pip-audit>=2.7,<3
FAULTS_ARGS ?= --place disk --schedules 50

.DEFAULT_GOAL := help
.PHONY: help train test drill faults bench lint wheel format dev constraints audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(VENV)/installed-core build/letter.zarr ## train on the Letter data (TRAIN_ARGS="--set model.C=1" to vary)
	$(BIN)/dtopk train jobs/letter.toml $(TRAIN_ARGS)

test: $(VENV)/installed-test ## run the tests (PYTEST_ARGS="-k name -x" to choose)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup $(PYTEST_ARGS)

drill: $(VENV)/installed-test ## do harm to runs on workers (DRILL_ARGS="--help" for more of it)
	$(BIN)/python -m tests.drill.drill $(DRILL_ARGS)

faults: $(VENV)/installed-test ## carry out drawn schedules of faults (FAULTS_ARGS="--help" for more of it)
	$(BIN)/python -m tests.faults.bench $(FAULTS_ARGS)

bench: $(VENV)/installed-core ## measure the speed of training on this machine
	$(BIN)/dtopk bench

lint: $(VENV)/installed-dev ## ruff, mypy, import-linter and codespell
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

wheel: $(VENV)/installed-dev ## build the wheel and import what is in it
	rm -rf build/wheel && $(PIP_WHEEL) --wheel-dir build/wheel .
	cd build/wheel && PYTHONPATH=$$(ls dtopk-*.whl) ../../$(BIN)/python -c 'import dtopk.cli, dtopk_storage; \
		print(dtopk.cli.__file__, dtopk_storage.__file__); assert "whl" in dtopk_storage.__file__'

format: $(VENV)/installed-dev ## format the code and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

dev: $(VENV)/installed-dev ## make the environment for work on dtopk itself

constraints: build/fresh-venv/pyvenv.cfg ## write constraints.txt anew, from the newest versions allowed
	build/fresh-venv/bin/python -m pip install --quiet --upgrade -e ".[dev]"
	build/fresh-venv/bin/python -m pip freeze --exclude-editable > build/freeze.txt
	{ grep '^#' constraints.txt; LC_ALL=C sort -f build/freeze.txt; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/fresh-venv

# With --strict, packages that no advisories can be had of fail it; else all would pass unseen.
audit: build/audit-venv/pyvenv.cfg ## look for known vulnerabilities in the versions of constraints.txt (asks pypi.org)
	build/audit-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$(PIP_AUDIT)"
	build/audit-venv/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt

clean: ## remove the environment, caches and build/ (runs/ and the tracking store stay)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find dtopk storage tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment serves all targets. A stamp says which extras are in it, and that they match
# the two files that choose them.

%/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "dtopk needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
			"Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

$(VENV)/installed-core: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP_INSTALL) -e ".[test]"
	@touch $(VENV)/installed-core $@

$(VENV)/installed-dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/installed-core $(VENV)/installed-test $@

build/letter.zarr: | $(VENV)/installed-core
	$(BIN)/dtopk ingest jobs/data/letter.npz $@ --labels-key y --divide-by 15 \
		--split-rows train=0:16000 --split-rows test=16000:20000
