# Every target sets up .venv by itself, once: the stamp is renewed when pyproject.toml or constraints.txt change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TRAINERS := .venv-integrations
ZOO    := .venv-zoo
DOCS   := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help setup reproduce check test test-slow lint bench integrations test-integrations zoo mutants package docs clean

help:             ## show this list
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 19

setup: $(STAMP)   ## make .venv with the pinned dependencies
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "found Python %s, tacit needs 3.11 or newer; run: make PYTHON=/path/to/python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

reproduce: $(STAMP) ## every figure of the paper on a small task, with verdicts: about 5 minutes on 2 cores
	$(BIN)/tacit reproduce

# The core: what every change may break, and little that waits for processes. Under 90 seconds on two cores.
CORE := tests/test_layers.py tests/test_architecture.py tests/test_notation.py tests/test_random.py \
        tests/test_batching.py tests/test_schedules.py tests/test_nstep.py tests/test_convert.py tests/test_problem.py \
        tests/test_files.py tests/test_arguments.py tests/penalty/test_methods.py tests/theory/test_modified_losses.py \
        tests/studies/describe/test_study.py tests/studies/train/test_batched_mlp.py tests/studies/store/test_folder.py \
        tests/studies/store/test_shared_runs.py

check: $(STAMP)   ## lint, types and the core of the tests, for every commit: under 90 seconds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" $(CORE)

test: $(STAMP)    ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-slow: $(STAMP) ## every test, slow ones too: 20,000 random models among them
	$(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 3600

lint: $(STAMP)    ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)   ## time, memory and error of every penalty method, and of fleets
	$(BIN)/tacit bench --json benchmarks/results/bench.json
	$(BIN)/python benchmarks/fleet_rates.py --json benchmarks/results/bench.json

$(TRAINERS)/.installed: pyproject.toml constraints.txt constraints-integrations.txt
	$(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(TRAINERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-integrations.txt -e '.[integrations]'
	@touch $(TRAINERS)/.installed

$(ZOO)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(ZOO)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[zoo]'
	@touch $(ZOO)/.installed

zoo: $(ZOO)/.installed ## every method on the public models of docs/models.md: about 10 minutes, nothing is downloaded
	$(ZOO)/bin/python benchmarks/zoo/run.py --again --json benchmarks/results/zoo.json
	$(ZOO)/bin/python docs/models_table.py

test-integrations: $(TRAINERS)/.installed ## the tests of the penalty in Lightning, Transformers and accelerate; none may be skipped
	TACIT_NO_SKIPS=1 $(TRAINERS)/bin/python -m pytest tests/integrations

integrations: test-integrations ## the same tests, then the matrix of every trainer and every case
	$(TRAINERS)/bin/python tests/integrations/record.py
	$(TRAINERS)/bin/python docs/integrations_page.py

mutants: $(STAMP) ## break named things one at a time: each must turn a test red
	$(BIN)/python tests/mutants.py

$(DOCS)/.installed: pyproject.toml constraints.txt constraints-docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-docs.txt -e '.[docs]'
	@touch $(DOCS)/.installed

docs: $(DOCS)/.installed ## the docs site with its tutorials run, into build/site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict  # a banner of the theme, not a warning of the site

package:          ## wheel and sdist, checked, installed in a clean environment elsewhere and used there
	$(PYTHON) tests/check_package.py $(foreach python,$(PYTHONS),--python $(python)) $(if $(VENVS),--venvs $(VENVS))

clean:            ## remove .venv and caches
	rm -rf $(VENV) $(ZOO) $(TRAINERS) $(DOCS) build dist .mypy_cache .ruff_cache .pytest_cache
