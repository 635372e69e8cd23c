# The project's commands; `make` alone lists them. They need Linux, GNU make and Python >= 3.11 with its venv.

PYTHON = python3
ARGS =
PEERS =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint types coverage soak guarantees bench check clean

python := .venv/bin/python
# Editable, so that what runs is what stands in the working tree, after every edit and every pull.
install := $(python) -m pip install --quiet --disable-pip-version-check --no-input --editable

# What would run other code than .venv's, or make the tests' assertions vanish, when inherited.
unexport PYTHONHOME PYTHONINSPECT PYTHONOPTIMIZE PYTHONPATH PYTHONPLATLIBDIR PYTHONSAFEPATH PYTHONUSERBASE
unexport PYTHONWARNINGS PYTEST_DISABLE_PLUGIN_AUTOLOAD PYTEST_PLUGINS
unexport PIP_DRY_RUN PIP_PREFIX PIP_PYTHON PIP_ROOT PIP_TARGET PIP_USER

# The extra for this machine's NVIDIA driver, with a comma before it, or nothing: the first drivers of CUDA 13 and
# of CUDA 12 are 580 and 525. A driver in trouble answers with a sentence, or not at all.
cuda_extra = $$(timeout 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | \
	awk -F. 'NR == 1 { if ($$1 + 0 >= 580) print ",cuda13"; else if ($$1 + 0 >= 525) print ",cuda12" }')

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'PYTHON=python3.12 names another interpreter for a .venv that is not made yet.'
	@echo 'ARGS="-k pool -x" is passed on to pytest.'

demo: .venv/demo.stamp ## tune the example kernel on this machine, from nothing
	.venv/bin/tunewire tune examples/matmul/matmul.py

test: .venv/dev.stamp ## run the whole test suite
	$(python) -m pytest $(ARGS)

lint: .venv/dev.stamp ## check style and formatting
	$(python) -m ruff check .
	$(python) -m ruff format --check .

# Decisions are pure, so every line and branch of them can be reached, and is.
pure := src/tunewire/workers/lifecycle.py,src/tunewire/workers/ladder.py,src/tunewire/workers/limits.py,src/tunewire/workers/recycle.py,src/tunewire/pool/scheduler.py,src/tunewire/services/rules.py,src/tunewire/wire/lane.py,src/tunewire/telemetry/sampling.py

coverage: .venv/dev.stamp ## check that the pure tables are covered to 100 %
	$(python) -m coverage run --branch --data-file=.venv/coverage --include='$(pure)' -m pytest -q tests/workers tests/pool tests/services tests/telemetry tests/wire
	$(python) -m coverage report --data-file=.venv/coverage --show-missing --fail-under=100

soak: .venv/dev.stamp ## 100,000 calls with failures among them: nothing lost, nothing left
	$(python) benchmarks/soak.py
	$(python) benchmarks/soak.py --loop uvloop --calls 20000

guarantees: .venv/dev.stamp ## measure what is promised, and write docs/guarantees.md
	$(python) benchmarks/guarantees.py

bench: .venv/dev.stamp ## compare with the peers, side by side; PEERS=all for TVM and PyTorch too
	$(python) benchmarks/bench.py $(if $(filter all,$(PEERS)),--heavy) $(ARGS)

types: .venv/dev.stamp ## check the types of src/, strictly
	$(python) -m mypy

check: lint types coverage test ## all of the above but the demo

clean: ## remove .venv and what the tools have left
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted installation leaves none. The larger installation passes through states
# in which the smaller one is broken too: it takes both stamps away first.

.venv/demo.stamp: pyproject.toml .venv/venv.stamp
	@echo 'Installing tunewire with what the demo needs into .venv; the first time takes a minute or two.'
	@rm -f $@
	@$(install) ".[cli,opencl$(cuda_extra)]"
	@touch $@

# CuPy comes from the nvrtc group where there is no driver, else from the driver's extra: two builds of it would
# overwrite each other.
.venv/dev.stamp: pyproject.toml .venv/venv.stamp
	@echo 'Installing tunewire with all that its development needs into .venv; the first time takes some minutes.'
	@rm -f .venv/demo.stamp $@
	@cuda="$(cuda_extra)"; \
	if [ -n "$$cuda" ]; then groups='--group test --group lint'; else groups='--group dev'; fi; \
	$(install) ".[all$$cuda]" $$groups
	@touch .venv/demo.stamp $@

# --clear, because what an interrupted run has left is nothing to build on. Debian's pip knows no --group yet.
.venv/venv.stamp:
	@test "$$(uname -s)" = Linux || { echo "tunewire runs on Linux; this is $$(uname -s)." >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo 'There is no $(PYTHON): name one with PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; old = "tunewire needs Python 3.11 or newer; \
	$(PYTHON) is %d.%d: name another with PYTHON=..."; sys.exit(v < (3, 11) and old % v[:2])'
	@"$(PYTHON)" -m venv --clear .venv
	@$(python) -m pip install --quiet --disable-pip-version-check --no-input --upgrade 'pip>=25.1'
	@touch $@
