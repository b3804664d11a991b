# make run    serve on http://127.0.0.1:8080        make test   the whole suite
# make soak   an hour of a fleet in trouble
# make dev    strict editable install               make check  format, lint, types, import rules
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := middleware cache router policies bench
PACKAGES := $(SOURCES:%=tierway.%)

.PHONY: run test dev check bench soak test-real lock clean

run: $(VENV)/.installed
	$(BIN)/tierway serve

test: $(VENV)/.tested
	$(BIN)/python -P -m pytest $(ARGS)

check: $(VENV)/.tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES:%=-p %)
	$(BIN)/lint-imports

# Changes in the sources show at once; a new file wants another `make dev`.
dev: $(VENV)/.test-dependencies
	$(BIN)/python -m pip install -qq --no-deps --config-settings editable_mode=strict -e .
	touch $(VENV)/.dev

# An hour; `make soak ARGS="--minutes 5"` is what CI runs.
soak: $(VENV)/.tested
	$(BIN)/python -P -m tierway.bench.soak $(ARGS)

bench: $(VENV)/.tested
	$(BIN)/python -P -m tierway.bench.table

test-real: $(VENV)/.tested
	$(BIN)/python -P -m pytest -m real tests/e2e

lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --extra test -c requirements.lock pyproject.toml -o requirements-test.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

FILES := $(shell find $(SOURCES) -type f -not -name '*.pyc' 2>/dev/null) pyproject.toml

$(VENV)/.dependencies: $(BIN)/python requirements.lock
	$(BIN)/python -m pip install -qq --require-hashes -r requirements.lock
	touch $@

$(VENV)/.test-dependencies: $(BIN)/python requirements-test.lock
	$(BIN)/python -m pip install -qq --require-hashes -r requirements-test.lock
	touch $@

# An editable install (make dev) stays; otherwise what runs is a copy of the sources as they are.
$(VENV)/.installed: $(VENV)/.dependencies $(FILES)
	test -e $(VENV)/.dev || $(BIN)/python -m pip install -qq --no-deps .
	touch $@

$(VENV)/.tested: $(VENV)/.test-dependencies $(FILES)
	test -e $(VENV)/.dev || $(BIN)/python -m pip install -qq --no-deps .
	touch $@
