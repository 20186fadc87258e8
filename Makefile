# Everything runs in an environment of the project's own, made on first use and made again when
# pyproject.toml changes. Nothing to activate. `make` alone lists what there is.

# The interpreter to build on; python3 has .venv, any other its own, so that versions can live side by side.
PYTHON ?= python3
# Further extras of pyproject.toml to install, with commas: EXTRAS=tpu, EXTRAS=cuda,wandb.
EXTRAS ?=
# Passed on to pytest: make test PYTEST_ARGS="-k masking -x". `-n 0` runs in one process, for a debugger.
PYTEST_ARGS ?=

VENV := .venv$(if $(filter-out python3,$(notdir $(PYTHON))),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMPS := $(VENV)/.installed

comma := ,
# $(call installed,A B): the stamps of the package with each of these extras and those of EXTRAS.
installed = $(patsubst %,$(STAMPS)/%,$(sort $(1) $(subst $(comma), ,$(EXTRAS))))

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.PHONY: help setup demo test test-slow wheel lint format docs clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  PYTHON=python3.12 chooses the interpreter, EXTRAS=tpu,wandb further extras,'
	@echo '  PYTEST_ARGS="-k masking -x" what pytest is told.'

setup: $(call installed,test) ## make the environment
	@echo "$(VENV) is ready. Next: make demo trains a small encoder (about 10 minutes), make test runs the tests."

demo: $(call installed,core) ## train a small encoder on real text and fill masks with it
	@$(BIN)/python -m bert_jax.demo

test: $(call installed,test) ## run the tests
	@$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)
	@echo "The tests pass on $$($(BIN)/python -V). Next: make demo trains a small encoder; CONTRIBUTING.md says how to change things."

test-slow: $(call installed,test) ## run the tests that make test leaves out
	@$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

wheel: $(call installed,test) ## build the wheel and check a recipe from it alone
	@rm -rf build/wheel
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	@$(BIN)/python -m pip install --quiet --no-deps --no-index --target build/wheel/installed build/wheel/*.whl
	@cd build/wheel && PYTHONPATH=installed ../../$(BIN)/python -c \
	  'import bert_jax; assert "wheel/installed" in bert_jax.__file__, bert_jax.__file__'
	@cd build/wheel && PYTHONPATH=installed ../../$(BIN)/python -m bert_jax.cli recipes check bert-tiny

lint: $(call installed,test lint) ## check format, rules and types
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m pyright --pythonpath $(BIN)/python

format: $(call installed,lint) ## put the code in the project's format
	@$(BIN)/python -m ruff format .
	@$(BIN)/python -m ruff check --fix .

docs: $(call installed,docs) ## build the reference of the Python interface in build/docs
	@$(BIN)/python -m pdoc --docformat google --output-directory build/docs bert_jax
	@echo "Open build/docs/index.html. The guides are Markdown in docs/."

clean: ## remove environments, caches and build outputs (runs stay)
	rm -rf .venv .venv-* .cache build dist .pytest_cache .ruff_cache .hypothesis
	find bert_jax tests tools experiments -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp an extra, written last, so that an interrupted installation is taken up again. `core` is
# the package without extras. An environment that is broken or whose interpreter is gone is made anew.
$(STAMPS)/%: pyproject.toml $(if $(realpath $(BIN)/python),,always)
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null || { \
	  python=$$(tools/find-python $(PYTHON)) && \
	  echo "Making $(VENV) with $$("$$python" -V) ..." && \
	  "$$python" -m venv --clear $(VENV); }
	@echo "Installing bert_jax$(if $(filter-out core,$*), [$*]) into $(VENV) (minutes, the first time) ..."
	@$(BIN)/python -m pip install --quiet --editable ".$(if $(filter-out core,$*),[$*])"
	@mkdir -p $(STAMPS)
	@touch $@ $(STAMPS)/core

.PHONY: always
always:
