# Two commands on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
# Both make their own virtual environment first. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
# torch chooses the versions of these.
FOLLOW_TORCH := torch triton sympy mpmath setuptools
# Tests wait for their processes, and for each other's: six keep two cores busy.
WORKERS ?= 6
# What `make test` runs: by default all.
TESTS ?=
# Where Python is told to keep no byte code (images of containers often are), each of the thousands of processes that
# the tests start would compile the project anew: a quarter of all their processor time.
export PYTHONDONTWRITEBYTECODE :=
# Whatever needs neither torch nor several servers, hosts or minutes, and the main paths of the real programs.
CHECKED := tests/unit tests/golden tests/property tests/simulation \
  tests/integration/test_programs.py tests/integration/test_elastic.py
# Tests of other people's programs, of wheel and release, fuzzing, and minutes of chance: more than half of the time of `make test`.
LONG := browser chaos containers distribution frameworks fuzz load parity slurm
FEWER := HYPOTHESIS_PROFILE=quick SIMULATION_SCHEDULES=100
# Exit code 1 of pytest: every test ran, and some failed. A test that fails alone as well fails the suite.
AGAIN = echo "make: running the failed tests again, one at a time; a test that passes now is flaky, which is a bug" && \
  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none
# Versions of everything that is installed, except torch, which TORCH chooses, and what torch chooses.
CONSTRAINTS := constraints.txt
# Installs $(1), naming what it downloads, with a bar on a terminal. If that fails, the last line says why.
PIP_INSTALL = @rm -f $(PIP_LOG); PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) \
  $(BIN)/pip install --disable-pip-version-check --no-input --log $(PIP_LOG) $(1) 2>&1 || { $(PIP_FAILED); exit 2; }
PIP_LOG := $(VENV)/pip.log
PIP_FAILED = { \
  if [ $$(df -Pk $(VENV) | awk 'END {print $$4}') -lt 10240 ] || grep -q 'No space left' $(PIP_LOG); then echo "make: no space is left in $(PLACES)"; \
  elif ! $(BIN)/pip install --quiet --dry-run --ignore-installed --no-deps msgspec >/dev/null 2>&1; then \
    echo "make: pip cannot reach its package index; behind a proxy or with a mirror, set HTTPS_PROXY or PIP_INDEX_URL"; \
  else echo "make: pip failed; its whole log is $(PIP_LOG)"; fi; } >&2
PLACES = $(abspath $(VENV)) or $${TMPDIR:-/tmp}; to use another place: make VENV=/path/venv TMPDIR=/path ...

.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

demo: $(VENV)/examples.done  ## train a real model over two nodes of two workers, and kill one on the way
	@$(BIN)/python examples/demo.py

test: $(VENV)/dev.done $(VENV)/programs.done  ## the whole test suite; as root on Debian it installs the programs it needs
	@tests/install-debian-packages.sh
	$(BIN)/python -m pytest -n $(WORKERS) $(TESTS) || { [ $$? -eq 1 ] && $(AGAIN); }

suite: $(VENV)/dev.done $(VENV)/examples.done  ## before a push: all tests except the longest, with fewer examples; ten minutes; as root on Debian it installs the programs it needs
	@tests/install-debian-packages.sh
	$(FEWER) $(BIN)/python -m pytest -n $(WORKERS) $(LONG:%=--ignore=tests/%)

check: check-static  ## before a commit: style, types, layers, unit tests, simulation, the programs' main paths; 2 minutes
	$(FEWER) $(BIN)/python -m pytest -n $(WORKERS) -m "not torch" $(CHECKED)

check-static: $(VENV)/dev.done  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-fresh: $(VENV)/dev.done  ## the two commands on new systems of Debian and Ubuntu, in containers: half an hour, as root
	FRESH=1 $(BIN)/python -m pytest -v tests/fresh

docs: $(VENV)/docs.done  ## the site of the documentation, into build/site; a warning is an error
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going -c docs . build/site
	@echo "make: open build/site/index.html"

gpu-check:  ## check node-agent on this machine's GPUs into build/gpu, with the torch of PYTHON; WHEELS: a folder of wheels to use
	@[ -z "$(WHEELS)" ] || $(PYTHON) -m pip install -q --no-index --no-deps --upgrade --target build/gpu/wheels $(WHEELS)/*.whl
	@PYTHONPATH=.:protocol:build/gpu/wheels $(PYTHON) -m benchmarks.gpu --write build/gpu

bench: $(VENV)/bench.done  ## measure node-agent beside torchrun into docs/explanation/performance.md: a quarter of an hour, better idle
	$(BIN)/python -m benchmarks --write docs/explanation/performance.md

lock: $(VENV)/dev.done  ## write the newest versions of all dependencies to constraints.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-annotate \
	  --custom-compile-command "make lock" $(FOLLOW_TORCH:%=--no-emit-package %) pyproject.toml --output-file $(CONSTRAINTS)
	@sed -i -E '/^(nvidia|cuda)-/d' $(CONSTRAINTS)

recording: $(VENV)/dev.done  ## record what this version promises, its messages and its state file, for the tests of later versions
	$(BIN)/python -m tests.releases

release-rehearsal: $(VENV)/dev.done  ## do all of `make release`, although the checkout is not ready, and say what is missing
	$(BIN)/python tools/release.py --trial

release: $(VENV)/dev.done  ## make the files of a release in dist, and check them in clean environments; TAG=vX.Y.Z
	$(BIN)/python tools/release.py $(TAG:%=--tag %)

clean:  ## remove everything that make has made
	rm -rf $(VENV) build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/base.done: pyproject.toml $(CONSTRAINTS)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "make: there is no $(PYTHON); on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "make: $(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "make: a virtual environment in $(VENV), then rdzv-server and node-agent with their dependencies"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { echo "make: $(PYTHON) -m venv failed; probably no space is left in $(PLACES)" >&2; exit 2; }
	$(call PIP_INSTALL,--editable .)
	@touch $@

$(VENV)/dev.done: $(VENV)/base.done
	@echo "make: what the tests and checks need (pytest, hypothesis, mypy, ruff ...)"
	$(call PIP_INSTALL,--editable '.[dev]')
	@touch $(VENV)/docs.done $@

$(VENV)/docs.done: $(VENV)/base.done
	@echo "make: what the site of the documentation needs (sphinx, myst-parser, furo)"
	$(call PIP_INSTALL,--editable '.[docs]')
	@touch $@

# torch first and pinned, so that the extra finds it and pip does not choose another build.
$(VENV)/examples.done: $(VENV)/base.done
	@echo "make: PyTorch ($(TORCH)), the largest part: a few minutes on a slow line"
	$(call PIP_INSTALL,'$(TORCH)')
	@echo "make: what the examples need (numpy, scikit-learn)"
	$(call PIP_INSTALL,--editable '.[examples]')
	@touch $@

$(VENV)/bench.done: $(VENV)/examples.done
	@echo "make: what the benchmarks need (matplotlib, python-etcd)"
	$(call PIP_INSTALL,--editable '.[bench]')
	@touch $@

$(VENV)/programs.done: $(VENV)/examples.done
	@echo "make: what the programs of examples/gallery need (accelerate, deepspeed, lightning, torchdata, torchft, transformers)"
	$(call PIP_INSTALL,--editable '.[programs]')
	@touch $@

.PHONY: help demo test check check-static check-fresh docs gpu-check bench lock recording release-rehearsal release clean
