# Everything a newcomer needs: `make demo` and `make test`. Both set up what they need first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup browser demo test coverage mutants lint lock bench campaign soak docs outputs clean

setup: .venv/.done

.venv/.done: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (the first time this takes a few minutes) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(MAKE) --no-print-directory browser
	@touch $@

# The page and the report are tested in a browser. Without one, or the right to install it, those tests are skipped.
browser:
	@command -v chromedriver >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null; } || \
	  echo "There is no chromium with chromedriver: the tests of the page will be skipped."

demo: setup
	$(BIN)/commonweal demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The versions of constraints.txt with the hashes of their files, for every platform.
lock: setup
	$(BIN)/uv pip compile pyproject.toml --extra dev -c constraints.txt --generate-hashes --universal --python-version 3.11.5 \
	  --no-annotate --quiet --custom-compile-command "make lock" -o requirements-dev.lock

# Tests of real datasets run where COMMONWEAL_DATA, or a folder shared/data beside the project, has them.
SHARED := $(wildcard ../shared/data)
ifneq ($(SHARED),)
export COMMONWEAL_DATA ?= $(abspath $(SHARED))
endif

# Two processes of one thread each: the models in the tests are too small to gain from more threads.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Which lines no test enters, and an error below FLOOR per cent. Apart from `make test`, because tracing costs time.
FLOOR ?= 80
coverage: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov=commonweal --cov-report=term-missing:skip-covered --cov-fail-under=$(FLOOR)

# Changes the rules one operator at a time, to see which changes no test notices: an hour for all of them.
# MUTANTS="afl --most 100" selects.
mutants: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutants $(MUTANTS)

# Minutes; with --peers the other libraries are installed first, each into an environment of its own.
bench: setup
	$(BIN)/python -m benchmarks.speed $(BENCH)

# Kills, flips, full disks, two processes, and FUZZ random changes of what each reader reads: half an hour.
# CAMPAIGN="--only ranks" selects trials.
FUZZ ?= 1000
campaign: setup
	OMP_NUM_THREADS=1 COMMONWEAL_FUZZ=$(FUZZ) $(BIN)/python -m pytest -n 0 tests/datasets/test_wrong_files.py \
		tests/record/test_damaged_runs.py tests/jobs/test_wrong_experiments.py tests/flower/test_any_reply.py \
		tests/ui/test_any_request.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/campaign.py $(CAMPAIGN)

# 100,000 rounds with 200 kills: hours. SOAK="--rounds 2000 --kills 20" is shorter.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py $(SOAK)

clean:
	rm -rf .venv build src/*.egg-info

# The site, in build/site, with warnings as errors.
docs: setup
	OMP_NUM_THREADS=1 $(BIN)/python docs/_site/build_site.py

# Writes what commands print into the pages that show it (`<!-- prints -->`; tests/page_outputs.py).
outputs: setup
	OMP_NUM_THREADS=1 COMMONWEAL_WRITE_OUTPUTS=1 $(BIN)/python -m pytest -n 2 tests/docs/test_pages.py tests/docs/test_own_page.py
