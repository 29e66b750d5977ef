# Two commands do everything: `make reproduce` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup reproduce test lint lock clean

setup: $(INSTALLED)

$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --progress-bar on --disable-pip-version-check -r requirements.lock
	@touch $@

# DVC calls `python`, which has to be the environment's.
reproduce: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" dvc repro
	@echo "The report is at $(CURDIR)/report/index.html"

test: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 python -m pytest --numprocesses auto --dist loadfile

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

# Pins anew from requirements.in. The build tag that a local torch adds (+cpu) is dropped.
lock: setup
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-annotate --no-emit-options \
	  --output-file .lock.tmp requirements.in
	{ sed -n '/^#/p' requirements.lock; sed '/^[-#]/d; s/^\(torch==[0-9.]*\)+.*/\1/' .lock.tmp; } > .lock.new
	mv .lock.new requirements.lock && rm .lock.tmp

clean:
	rm -rf $(VENV)
