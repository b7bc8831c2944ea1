# Everything runs in .venv, which `setup` makes on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := dev,images,lightning,huggingface,ray,tensorboard,mlflow,export

.PHONY: setup setup-demo demo test test-gpu test-vision test-oldest faults lint docs bench clean

setup: .venv/.tests-ready
setup-demo: .venv/.ready

# The demo needs the package alone; torch first and pinned, so that the small CPU build is taken.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.tests-ready: .venv/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	./scripts/install-chromium
	touch $@

demo: setup-demo
	$(BIN)/ncollapse compare --data digits --losses ce bce --seeds 3 --out demo

test: setup
	$(BIN)/pytest -n auto --dist worksteal -q

test-gpu:
	PYTHON=$(PYTHON) ./scripts/test-gpu

test-vision:
	PYTHON=$(PYTHON) ./scripts/test-vision

# The long form of the campaign in tests/faults: some 20 000 cases, a quarter of an hour on two cores.
faults: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults

test-oldest:
	PYTHON=$(PYTHON) ./scripts/test-oldest

docs:
	PYTHON=$(PYTHON) ./scripts/build-docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/measure.py
	$(BIN)/python benchmarks/certify.py
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/monitor.py

clean:
	rm -rf .venv .venv-vision .venv-oldest .venv-docs build dist demo docs/site .pytest_cache .mypy_cache .ruff_cache .hypothesis
