# make demo      the R1 recipe on this machine, from a fresh clone
# make test      the tests, without the slow ones        make test-all   all of them
# make check     ruff, mypy, tests                       make clean      everything that make made, outputs aside
#
# CONSTRAINTS= (empty) takes the newest versions inside pyproject.toml's ranges, for a torch that you chose yourself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev,sweep,lora
TEST_PROCESSES ?= 2

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test test-all check lint types format clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -5

install: $(INSTALLED)

# Installs again only when what is wanted has changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-input --disable-pip-version-check --quiet \
	    $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) '.[$(EXTRAS)]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/python run.py pipeline=r1_style

# One thread a test process: two processes with two threads each on two cores run many times slower.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -q

test-all: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -q -m 'slow or not slow'

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

check: lint types test

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './outputs/*' -prune -exec rm -rf {} +
