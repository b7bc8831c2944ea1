# Everything runs in .venv, which `setup` makes on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint bench clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,lightning,huggingface,ray,tensorboard,mlflow,export]'
	./scripts/install-chromium
	touch $@

demo: setup
	$(BIN)/ncollapse compare --data digits --losses ce bce --seeds 3 --out demo

test: setup
	$(BIN)/pytest -n auto -q

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/measure.py

clean:
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
