# make run: set up .venv and run the main job; its last line is the report's path.
# make test: set up .venv and run the tests, on up to four cores; ARGS="-m 'not slow'" leaves out those over 20 s.
# make versions: run and test in fresh clones of the last commit, with each Python that pyproject.toml names.
# PYTHON chooses the interpreter, ARGS goes to the program, CHECKS are what make versions does.
PYTHON ?= python3
ARGS ?=
CHECKS ?= run test
BIN := .venv/bin
PINS = constraints/python$(shell $(PYTHON) -c 'import sys; print("3.11" if sys.version_info < (3, 12) else "3.12")').txt

.PHONY: run test versions browser lint wheels pins fuzz clean

run: .venv/ready
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pipeline $(ARGS)

# Modules are compiled once, not by each process.
test: .venv/ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

versions:
	versions=$$(grep -oP 'Python :: \K3[.]\d+' pyproject.toml) && for version in $$versions; do clone=$$(mktemp -d) && \
	  git clone --quiet . $$clone && $(MAKE) -C $$clone $(CHECKS) PYTHON=python$$version && rm -rf $$clone || exit 1; done

# Opens a report in chromium, which must be installed; not part of test.
browser: .venv/ready
	$(BIN)/python -m pytest tests/browser/check_report.py $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml $(wildcard constraints/python*.txt)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d; try make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(PINS) --editable '.[dev]'
	@touch $@

# The source archive, and out of it both wheels: dist/unet_ladder-*.whl and dist/unet_kernels-*.whl.
wheels: .venv/ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check hatchling
	$(BIN)/python -c "import wheels; wheels.build_sdist('dist')"
	for wheel in unet_ladder unet_kernels; do \
	  $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist --config-settings wheel=$$wheel dist/*.tar.gz || exit 1; done
	@ls dist/*

# Renews the pins from pyproject.toml: names and versions only, one file per set of Python versions.
pins: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	for version in 3.11 3.12; do $(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate --python-version $$version \
	  --constraint constraints/held.txt --all-extras pyproject.toml --output-file constraints/python$$version.txt; done

# Spoilt input for everything that parses, for ten minutes.
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz $(ARGS)

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
