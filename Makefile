# Everything runs from .venv, which the targets create, update and repair as needed.
# Requires make, and Python 3.11 to 3.13 with pip and venv (make PYTHON=python3.12 ...).

# The newest Python that can create a .venv: pip then finds a newer JAX, which is faster on CPU.
NEWEST := for p in python3.13 python3.12 python3.11; do \
	$$p -c 'import ensurepip, venv' 2> /dev/null && echo $$p && break; done
PYTHON ?= $(or $(shell $(NEWEST)),python3)
RUNS ?= runs
LOCK_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin

# pip compiles no bytecode, which would take longer than the rest of the set-up; Python
# compiles each module when it is first imported.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo copying tasks test test-all test-processors accelerator aot lint format generate schema docs tensorboard lock clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
		while IFS='|' read -r target text; do printf '%-18s %s\n' "$$target" "$$text"; done

setup: $(VENV)/.runtime ## install the runtime packages into .venv
	@echo 'Ready: $(BIN)/python. To run the tests: make test'

demo: $(VENV)/.runtime ## train and evaluate a small model (minutes on two cores)
	$(BIN)/rope-jax train configs/demo.yaml
	$(BIN)/rope-jax sweep runs/demo --sweep configs/sweeps/demo.yaml
	@echo 'Figure: runs/demo/evals/demo/curve.png. Training curves: make tensorboard RUNS=runs/demo'

copying: $(VENV)/.runtime ## extend a model to which far text is worth something, in three ways (5 to 14 minutes)
	$(BIN)/rope-jax grid configs/grids/copying.yaml
	@echo 'Figure: comparisons/copying/comparison.png'

tasks: $(VENV)/.runtime ## train a model that finds passkeys, and ask it past its window (half an hour)
	$(BIN)/rope-jax train configs/demo_tasks.yaml
	$(BIN)/rope-jax fit runs/demo_tasks --fit configs/fits/far.yaml
	$(BIN)/rope-jax sweep runs/demo_tasks --sweep configs/sweeps/tasks.yaml \
		'scalings.6={type: runs/demo_tasks/fits/far/strategy.json, name: fitted}'
	@echo 'Figure: runs/demo_tasks/evals/tasks/passkey.png'

test: $(VENV)/.dev ## run the tests, except the slow ones (3 to 4 minutes on two cores)
	$(BIN)/python -m pytest -m 'not slow'

# With jaxtyping's import hook: arrays whose shapes are not the annotated ones are an error.
test-all: $(VENV)/.dev ## run all tests, as CI does, with types and shapes checked
	$(BIN)/python -m pytest --jaxtyping-packages=rope_jax,beartype.beartype

# What a processor decides: tests of numbers, as one with AVX2 alone computes them, and without kernels.
NUMBERS := $(addprefix tests/,attention kernels model positions fitting training/test_step.py \
	evaluation/test_sweep_maps.py generation/test_decoding.py devices/test_split_programs.py test_recipes.py)

test-processors: $(VENV)/.dev ## run the tests of numbers as processors with AVX2 alone, or without kernels, would
	XLA_FLAGS=--xla_cpu_max_isa=AVX2 $(BIN)/python -m pytest -m 'not slow' $(NUMBERS)
	$(BIN)/python -m pytest -m 'not slow' --without-kernels $(NUMBERS)

accelerator: $(VENV)/.dev ## check the attention kernels on a GPU or TPU, and measure its speed (12 minutes)
	rm -f '$(RUNS)'/accelerator/*.log
	PYTHON=$(BIN)/python benchmarks/device.sh '$(RUNS)/accelerator'

aot: $(VENV)/.dev ## compile every attention and mesh for TPUs and GPUs (hours; needs their compilers)
	$(BIN)/python scripts/aot.py matrix

lint: $(VENV)/.dev ## check style, types and generated tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate.py --check

format: $(VENV)/.dev ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.dev ## write the generated tables in README.md and docs/
	$(BIN)/python scripts/generate.py

schema: $(VENV)/.runtime ## write JSON schemas, by which editors complete configs, to configs/schema
	$(BIN)/python scripts/write_schemas.py

docs: $(VENV)/.docs ## build the documentation site in docs/_build/html; a broken link is an error
	rm -rf docs/_build docs/api
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo 'The site: docs/_build/html/index.html'

tensorboard: $(BIN)/tensorboard ## show curves of all runs, or of one: RUNS=runs/demo
	@echo 'Open http://localhost:6006/?smoothing=0'
	@echo 'All scalings on one chart: http://localhost:6006/?smoothing=0#custom_scalars&_smoothingWeight=0'
	@echo 'TensorBoard unticks all runs where there are more than 40: tick those to see, or name the'
	@echo 'folder of one run or of one sweep: make tensorboard RUNS=FOLDER'
	$(BIN)/tensorboard --logdir '$(RUNS)'

COMPILE := $(BIN)/uv pip compile pyproject.toml --group build --quiet --universal \
	--python-version 3.11 --fork-strategy requires-python --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock'

# The development lock comes first; the runtime lock takes its versions, so both agree.
lock: $(VENV)/.created ## pin the dependencies (LOCK_FLAGS=--upgrade for the newest)
	@echo 'Resolving the dependencies'
	@$(PIP_INSTALL) 'uv>=0.13,<0.14'
	@$(COMPILE) --extra dev $(LOCK_FLAGS) --output-file requirements-dev.lock > /dev/null
	@cp requirements-dev.lock $(VENV)/requirements.lock
	@$(COMPILE) --output-file $(VENV)/requirements.lock > /dev/null
	@mv $(VENV)/requirements.lock requirements.lock
	@$(COMPILE) --extra docs $(LOCK_FLAGS) --output-file requirements-docs.lock > /dev/null

clean: ## remove .venv and the caches (runs/ stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build docs/api
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .partial exists while packages are being installed. If it is left over, the installation
# was interrupted: start over.
ifneq ($(wildcard $(VENV)/.partial),)
$(VENV)/.created: FORCE
endif

define CHECK_PYTHON
import sys
found = tuple(sys.version_info[:2])
if not (3, 11) <= found < (3, 14):
    sys.exit("rope-jax needs Python 3.11 to 3.13, but $(PYTHON) is %d.%d; choose another, as in make PYTHON=python3.12 ..." % found)
endef
export CHECK_PYTHON

$(VENV)/.created:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv --clear $(VENV)
	@sed -n '/^pip==/,/[^\\]$$/p' requirements.lock > $(VENV)/pip.lock
	@$(PIP_INSTALL) --require-hashes -r $(VENV)/pip.lock
	@touch $@

KERNELS := hatch_build.py rope_jax/kernels/build.py $(wildcard rope_jax/kernels/*.cc rope_jax/kernels/*.h)

$(VENV)/.runtime: $(VENV)/.created requirements.lock pyproject.toml $(KERNELS)
	@echo 'Installing the runtime packages (about a minute, longer on a slow connection)'
	@touch $(VENV)/.partial
	@$(PIP_INSTALL) --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@ls rope_jax/kernels/kernels-*.so > /dev/null 2>&1 || \
		echo 'No C++ compiler, or it failed: without the kernels for CPUs, which would be faster'
	@rm $(VENV)/.partial
	@touch $@

# Alone of the development packages, in the version of their lock.
$(BIN)/tensorboard: $(VENV)/.runtime requirements-dev.lock
	@echo 'Installing TensorBoard'
	@$(PIP_INSTALL) --constraint requirements-dev.lock tensorboard
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@echo 'Installing the development packages'
	@touch $(VENV)/.partial
	@$(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	@rm $(VENV)/.partial
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime requirements-docs.lock
	@echo 'Installing the packages of the documentation site'
	@touch $(VENV)/.partial
	@$(PIP_INSTALL) --require-hashes -r requirements-docs.lock
	@rm $(VENV)/.partial
	@touch $@
