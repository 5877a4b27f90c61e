# make run: install and open the app.  make test: install and run every test.  Both work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: run test check fast bench bench-player figures clean

run: .venv/.ready
	$(BIN)/streamlit run app.py

test: .venv/.ready-dev chromium
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not browser"
	$(BIN)/python -m pytest -m browser tests/browser

fast: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not browser and not slow" -x

check: .venv/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.ready-dev
	$(BIN)/python -m pip install -q -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks

bench-player: .venv/.ready-dev chromium
	$(BIN)/python -m benchmarks.player

figures: .venv/.ready-dev chromium
	$(BIN)/python assets/make.py

.PHONY: chromium
chromium:
	@sh .ci/chromium

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/.ready: .venv/bin/python requirements.txt pyproject.toml
	$(BIN)/python -m pip install -q -r requirements.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	$(BIN)/python -m dmviz.warm
	@touch $@

.venv/.ready-dev: .venv/.ready requirements-dev.txt
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
