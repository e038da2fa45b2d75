VENV ?= .venv
PY ?= python3
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: install demo test test-slow check bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[check]"
	touch $@

demo: install
	$(BIN)/rag-accel demo

test: install
	$(BIN)/python -m pytest -m "not slow"

test-slow: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python tests/smoke/check_wheel.py

bench: install
	$(BIN)/python -m bench all --quick

clean:
	rm -rf $(VENV) build dist
