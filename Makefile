# Every target creates .venv and installs what it needs, once, at the versions in constraints.txt.
#
#   PYTHON      the interpreter that .venv is made from (3.10 or newer)
#   ARGS        passed on: make test ARGS="-k conv", make bench ARGS="--device cuda"
#   WORKERS     test processes
#   SEED, COUNT the first and the number of the random networks of make test-random and test-cuda; the sample of make test-mutants
#   SETTINGS    what make test-machines runs under: SETTINGS="OMP_NUM_THREADS=2 PEEWIT_TEST_ORDER=7"
#   FILES       measurements that make bench-page merges
#   NO_INSTALL  set it to run with PYTHON as it is found, without .venv: make bench NO_INSTALL=1 ARGS="--device cuda"

PYTHON ?= python3
WORKERS ?= 2
SEED ?= 1000
COUNT ?= 1000
ARGS ?=
FILES ?= $(wildcard benchmarks/results/*.json)
# What stands for other machines: other instructions in each of torch's libraries, threads, hashes, and orders of tests.
# A comma joins what holds in one run.
PLAIN := ATEN_CPU_CAPABILITY=default,MKL_CBWR=COMPATIBLE
SETTINGS ?= OMP_NUM_THREADS=1 OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 $(PLAIN) \
            ONEDNN_MAX_CPU_ISA=SSE41 PYTHONHASHSEED=7 PEEWIT_TEST_ORDER=1

VENV := .venv
STAMPS := $(VENV)/.stamps
# Where packages can be installed, `make carry` puts the pure Python ones here; test-cuda finds them where they cannot.
CARRY := .carry

# The libraries that we compare with. Without dependencies: see the extra `oracles` in pyproject.toml.
ORACLES := laplace-torch asdfghjkl backpack-for-pytorch curvlinops-for-pytorch einconv einops linear_operator \
           lightning-utilities opt-einsum torchmetrics tqdm unfoldNd
CARRIED := pytest pytest-xdist execnet pluggy iniconfig packaging pygments rich markdown-it-py mdurl $(ORACLES)

FOUND := PYTHONPATH=src:$(CARRY) $(PYTHON)
ifdef NO_INSTALL
  RUN := $(FOUND)
  PACKAGE :=
  TOOLS :=
else
  RUN := $(VENV)/bin/python
  PACKAGE := $(STAMPS)/package
  TOOLS := $(STAMPS)/tools
endif
# Tests whose numbers are made elsewhere: of words, pages, drawings and commands.
WORDS := bad_input benchmarks cli cli_reports demo distribution docs evaluate_mistakes evaluate_report examples \
         figures figures_browser figures_unusual notebooks page report settings site
NUMBERS := $(filter-out $(foreach word,$(WORDS),%/test_$(word).py),$(shell find tests -name "test_*.py" | sort))

# $(1) settings, one run of pytest with the arguments $(2) in each. A setting that fails does not end the others.
# Threads wait passively: there are more of them than cores where each of the WORKERS has two.
define under_each
	@trap 'exit 130' INT; failed=; \
	for setting in $(1); do \
	  echo "== $$setting"; \
	  env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $$(echo $$setting | tr , ' ') $(RUN) -m pytest -q -n $(WORKERS) $(2) || failed="$$failed $$setting"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed with:$$failed"; exit 1; fi; \
	echo "passed with: $(strip $(1))"
endef

INSTALL := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install test test-random test-mutants test-machines test-numbers test-cuda test-dist lint format docs test-docs notebooks api gallery sizes plotly demo bench bench-page quality quality-page dist hooks carry clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{ printf "  make %-13s %s\n", $$1, $$2 }'

install: $(TOOLS) ## create .venv with everything in it

test: $(TOOLS) ## run the tests on the CPU
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n $(WORKERS) $(ARGS)

test-random: $(TOOLS) ## compare COUNT random networks from SEED on with plain loops (ARGS="--help" for the options)
	@OMP_NUM_THREADS=1 $(RUN) tools/random_networks.py --seed $(SEED) --count $(COUNT) --workers $(WORKERS) $(ARGS)

test-mutants: SEED = 1
test-mutants: COUNT = 100
test-mutants: $(TOOLS) ## change COUNT places of each part of the library, one at a time, and see whether tests fail
	@OMP_NUM_THREADS=1 $(RUN) tools/mutants.py --seed $(SEED) --count $(COUNT) --workers $(WORKERS) $(ARGS)

test-machines: $(TOOLS) ## run the tests once for each of SETTINGS, as other machines would
	$(call under_each,$(SETTINGS),$(ARGS))

test-numbers: $(TOOLS) ## run the tests of numbers without vector instructions
	$(call under_each,$(PLAIN),$(NUMBERS) $(ARGS))

test-cuda: ## run the same tests and COUNT random networks on a GPU with PYTHON as it is found, nothing installed
	@$(FOUND) -c 'import pytest' 2>/dev/null || \
	  { echo "pytest is not there: run 'make carry' where packages can be installed and bring $(CARRY) along"; exit 1; }
	@if $(FOUND) -c 'import xdist' 2>/dev/null; then parallel="-n $(WORKERS)"; fi; \
	  OMP_NUM_THREADS=1 PEEWIT_TEST_DEVICE=cuda $(FOUND) -m pytest -q -p no:cacheprovider -p no:benchmark $$parallel $(ARGS)
	@OMP_NUM_THREADS=1 $(FOUND) tools/random_networks.py --device cuda --dtype float32 --turns \
	  --seed $(SEED) --count $(COUNT) --workers $(WORKERS)

test-dist: dist ## install what dist built into an empty environment, run the demo there, and mypy on a user's script
	@OMP_NUM_THREADS=1 PEEWIT_TEST_DIST=dist $(RUN) -m pytest -q tests/system/test_distribution.py $(ARGS)

lint: $(TOOLS) ## ruff, and mypy in strict mode on src, for Python 3.10 and 3.14
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy --python-version 3.10
	@$(RUN) -m mypy --python-version 3.14

format: $(TOOLS) ## rewrite the code as lint wants it
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

docs: $(TOOLS) ## build the site into site/, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict # not --quiet, which hides what --strict counts
	@echo "to read it with its search: $(RUN) -m http.server -d site"

test-docs: $(TOOLS) ## run the code in README.md and docs/
	@OMP_NUM_THREADS=2 $(RUN) -m pytest -q tests/system/test_docs.py $(ARGS)

notebooks: $(TOOLS) ## write a notebook for every page with code into notebooks/
	@$(RUN) tools/notebooks.py --out notebooks

api: $(TOOLS) ## write the reference from the docstrings, and the glossary
	@$(RUN) tools/api.py

sizes: $(TOOLS) ## count the lines and the tests of every room into docs/design.md
	@$(RUN) tools/sizes.py

gallery: $(TOOLS) ## make the pictures of docs/gallery.md, docs/report.md (both need a Chromium) and docs/any_network.md
	@$(RUN) tools/any_network.py
	@OMP_NUM_THREADS=2 $(RUN) tools/gallery.py

# The version that plotly for Python has inside; tests compare the two.
plotly: $(TOOLS) ## fetch plotly.js-basic, which pages hold, and its licence from npm
	@version=$$($(RUN) -c 'from plotly.offline import get_plotlyjs_version; print(get_plotlyjs_version())'); \
	  folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	  npm pack --silent --pack-destination "$$folder" plotly.js-basic-dist-min@$$version; \
	  tar xzf "$$folder"/*.tgz -C "$$folder"; \
	  cp "$$folder"/package/plotly-basic.min.js src/peewit/figures/plotly-basic.min.js; \
	  cp "$$folder"/package/LICENSE src/peewit/figures/LICENCE-plotly; \
	  echo "plotly.js-basic $$version"

demo: $(PACKAGE) ## real images: train, fit, tune, compare, and a report to open (ARGS="--help" for the options)
	@$(RUN) -m peewit_command demo $(ARGS)

bench: $(TOOLS) ## measure speed and memory: ARGS="--device cuda --precision tf32", ARGS="--help"
	@$(RUN) -m benchmarks.run $(ARGS)

bench-page: $(TOOLS) ## write docs/benchmarks.md, its tables and its figures from FILES, which are benchmarks/results/*.json
	@$(RUN) -m benchmarks.report $(FILES) --markdown docs/benchmarks.md --figures docs/figures/benchmarks

quality: $(TOOLS) ## measure predictions on real tasks, what is not in the files yet: ARGS="--data DIR --reduced", ARGS="--help"
	@$(RUN) -m benchmarks.quality.run $(ARGS)

quality-page: $(TOOLS) ## write docs/quality.md, its tables and its figures from benchmarks/quality/results
	@$(RUN) -m benchmarks.quality.page --markdown docs/quality.md --figures docs/figures/quality $(ARGS)

# Without what earlier builds left behind, which setuptools would take in.
dist: $(TOOLS) ## build the wheel and the source distribution into dist/, and check what the index would show of them
	@rm -rf build dist src/*.egg-info
	@said=$$(PIP_CONSTRAINT=constraints.txt $(RUN) -m build 2>&1) || { echo "$$said"; exit 1; }
	@$(RUN) -m twine check --strict dist/*

hooks: $(TOOLS) ## run lint before every commit
	@$(VENV)/bin/pre-commit install

carry: $(TOOLS) ## put what test-cuda needs beside torch into .carry
	@echo "installing into $(CARRY)"
	@rm -rf $(CARRY)
	@$(INSTALL) --no-deps --no-compile --target $(CARRY) $(CARRIED)
	@rm -rf $(CARRY)/bin $(CARRY)/test

clean: ## remove .venv, caches and outputs
	rm -rf $(VENV) $(CARRY) .mutants build dist site notebooks bench .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
	find src tests benchmarks examples tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Order-only: the interpreter's own date says nothing about what is installed.
$(STAMPS)/package: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing peewit and torch (the first time this takes minutes)"
	@$(INSTALL) -e '.[figures]' # the demo ends with a page of figures
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: $(STAMPS)/package
	@echo "installing the tools for tests, types and style"
	@$(INSTALL) -e '.[test,docs,dev,bench,figures,evaluate,images,export,serve]'
	@echo "installing the libraries to compare with"
	@$(INSTALL) --no-deps $(ORACLES)
	@touch $@
