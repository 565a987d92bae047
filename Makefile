# The three commands of the README: setup, demo, test. The other two call setup, which does nothing when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# one more than cores, for some tests only wait: for a server, a disk, a child
PROCESSES ?= 3
STAMP := $(VENV)/.ready

.PHONY: setup demo test pytest test-outside lint docs proto clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements/dev.txt requirements/bare.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'TensorFerry needs Python 3.11 or newer: make PYTHON=python3.11 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/bare.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: setup
	$(BIN)/ferry demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mypy runs beside the tests
test: setup
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

# files in the order that tests/conftest.py gives them
pytest: setup
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 10

# models and trainers of other packages, which are installed for this: half an hour, and a table
test-outside: setup
	$(BIN)/python -m pip install --quiet --requirement requirements/dev.txt --requirement requirements/outside.txt
	$(BIN)/python -m pytest tests/outside

# the documentation as a site that opens offline: site/index.html
docs: setup
	$(BIN)/zensical build --strict --clean

# the server's messages from their .proto files
PROTO := src/tensorferry/serve/proto
proto: setup
	$(BIN)/python -m grpc_tools.protoc -I $(PROTO) --include_imports --descriptor_set_out=$(PROTO)/descriptors.binpb $(PROTO)/*.proto

clean:
	rm -rf $(VENV) site
