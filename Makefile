# Each target sets up what it needs: `predict` the program, `test` and `lint` the tools as well,
# `docs` the generator of the manual.
PYTHON ?= python3
BIN := .venv/bin
PROGRAM := .venv/program.stamp
TOOLS := .venv/tools.stamp
MANUAL := .venv/manual.stamp
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
TEST_WORKERS ?= 2

CUDA_TORCH ?= 2.15.0
CUDA_TRITON ?= 3.9.0
CUDA := .venv/cuda-$(CUDA_TORCH).stamp
CUDA_PIP := .venv/cuda/bin/python -m pip install -qq --disable-pip-version-check

.PHONY: predict emulate test lint core check bench mutants fuzz laws faults docs manual scoreboard figures release clean

predict: $(PROGRAM)
	@$(BIN)/perfmodel predict --topology dgx_h100.yaml

test: $(TOOLS) $(CUDA)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal

# The environment that `perfmodel emulate` runs scripts in: a CUDA build of torch and its Triton as published, without NVIDIA's packages.
emulate: $(CUDA)

$(CUDA): | $(PROGRAM)
	@echo "Setting up .venv/cuda with torch $(CUDA_TORCH) for emulation (once, 830 MB to download) ..."
	@$(PYTHON) -m venv .venv/cuda
	@$(CUDA_PIP) --no-deps torch==$(CUDA_TORCH) triton==$(CUDA_TRITON)
	@$(CUDA_PIP) --constraint constraints.txt numpy sympy networkx jinja2 filelock typing_extensions fsspec setuptools
	@touch $@

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The core alone: a tree without extensions answers, and passes the core's tests.
CORE_ROOMS := base collectives core costs embeddings engine execution graph planning prediction reports stacks topologies workloads
core: $(TOOLS)
	@rm -rf build/core && mkdir -p build/core
	@git ls-files -z -- . ':!perfmodel/extensions' ':!traces' ':!tests/extensions' ':!tests/traces' ':!docs' ':!experiments' \
		| xargs -0 cp --parents -t build/core
	cd build/core && PYTHONPATH=$(CURDIR)/build/core $(CURDIR)/$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal $(addprefix tests/,$(CORE_ROOMS))

check: test lint core

bench: $(TOOLS)
	$(BIN)/pytest -m benchmark -s -q tests/benchmarks

mutants: $(TOOLS)
	$(BIN)/python -m tests.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),100)

fuzz: $(TOOLS)
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),1) --count $(or $(COUNT),10000)

laws: $(TOOLS)
	$(BIN)/python -m tests.laws --seed $(or $(SEED),1) --count $(or $(COUNT),2000)

faults: $(TOOLS)
	$(BIN)/python -m tests.faults --seed $(or $(SEED),1) --runs $(or $(RUNS),100)

# The manual as static pages, docs/_build/index.html; a warning is an error.
docs: $(MANUAL)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build
	@echo "The manual: docs/_build/index.html"

# Rewrites the outputs in README and manual by running their commands.
manual: $(TOOLS)
	PERFMODEL_ALL_COMMANDS=1 $(BIN)/python -m tests.manual

# Predictions against measured runs, into experiments/runs_scoreboard, README and manual. SCRIPTS=FOLDER also reruns
# the public scripts in that folder; without it their stored results are shown.
scoreboard: $(TOOLS)
	$(BIN)/python experiments/runs_scoreboard/run.py
	$(if $(SCRIPTS),$(BIN)/python experiments/scripts/run.py $(SCRIPTS))
	$(BIN)/python docs/scoreboard.py

# Every figure of experiments/README.md again; QUICK=1 takes two minutes and writes to build/figures.
figures: $(TOOLS)
	$(BIN)/python -m experiments $(if $(QUICK),--quick)

# Wheel and source archive, tested in an empty environment of each Python that is installed.
release: $(MANUAL)
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(PYTHON) docs/try_wheel.py dist

clean:
	rm -rf .venv build dist docs/_build docs/_generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(PROGRAM): pyproject.toml constraints.txt
	@echo "Setting up .venv with the program (once, a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perfmodel needs Python 3.11 or newer. Try: make PYTHON=python3.11 predict" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --editable '.[ui]'
	@touch $@

$(TOOLS): $(PROGRAM)
	@echo "Adding the tools for tests and lint to .venv (once, a few minutes) ..."
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev]'
	@touch $@

$(MANUAL): $(PROGRAM)
	@echo "Adding the generator of the manual to .venv (once) ..."
	@$(PIP) --editable '.[docs]'
	@touch $@
