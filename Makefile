# Every target sets up what it needs by itself; `make` alone lists them.

PYTHON ?=
# A pip index for torch alone, for example https://download.pytorch.org/whl/cpu (the small build without CUDA).
TORCH_INDEX ?=
# More arguments for pytest: make test ARGS="-k doctor".
ARGS ?=
# Processes that run the tests, one core each; 0: this one alone.
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu test-browser lint types fix docs eval-embedded grid build clean

# A virtual environment cannot be moved: in a copied or renamed checkout it is made anew.
ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
.PHONY: $(INSTALLED)
endif

help: ## list the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## install fuseproof and its tools into .venv (TORCH_INDEX=URL, PYTHON=python3.12)

$(INSTALLED): pyproject.toml constraints.txt
	@python="$(PYTHON)"; found=; \
	for candidate in $${python:-python3 python3.14 python3.13 python3.12 python3.11}; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "make setup: fuseproof needs Python 3.11 or newer, and $${python:-python3} is not." >&2; \
		echo "  next: install one, then make setup PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	if ! command -v nvidia-smi >/dev/null && [ -z "$(TORCH_INDEX)" ]; then \
		echo "No NVIDIA GPU here: where pip would fetch torch's CUDA build (several GB), the small one is enough:"; \
		echo "  make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu"; \
	fi; \
	set -ex; \
	[ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] || $$found -m venv --clear $(VENV); \
	$(BIN)/python -m pip install -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch; \
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@printf '%s' '$(CURDIR)' > $@

demo: $(INSTALLED) ## a whole campaign on the embedded model: pictures, verdict, report (under 10 minutes)
	@$(BIN)/fuseproof doctor
	@$(BIN)/fuseproof abba embedded --allow-busy --show --output demo/$$(date +%Y%m%d-%H%M%S) || [ $$? -eq 3 ] # 3: SLOWER

test: $(INSTALLED) ## run the tests that need no GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-gpu: $(INSTALLED) ## run the tests that need an NVIDIA GPU
	@command -v nvidia-smi >/dev/null || { echo "make test-gpu: no NVIDIA GPU here: nvidia-smi was not found" >&2; exit 1; }
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-browser: $(INSTALLED) ## draw a sample report in headless Chromium, into build/browser/; fails without one
	$(BIN)/python -m tests.browser build/browser

lint: $(INSTALLED) ## check style, format and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p fuseproof -p training

types: $(INSTALLED) ## check types alone
	$(BIN)/mypy -p fuseproof -p training

fix: $(INSTALLED) ## repair what ruff can repair, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

eval-embedded: $(INSTALLED) ## draw 200 held-out prompts with the embedded model and judge them (13 minutes on 2 idle cores)
	OMP_NUM_THREADS=2 $(BIN)/python -m training.evaluate $(ARGS)

grid: $(INSTALLED) ## draw eight fixed prompts with the embedded model into docs/embedded-grid.jpg (ARGS="--checkpoint FOLDER")
	OMP_NUM_THREADS=2 $(BIN)/python -m training.grid $(ARGS)

docs: $(INSTALLED) ## write docs/cli from the commands' --help, and docs/fast-paths.md from the docstrings
	$(BIN)/python -m fuseproof.cli.reference docs/cli --guide docs/fast-paths.md

build: $(INSTALLED) ## build source archive and wheel into dist/, and check what they hold
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m tests.distribution dist

clean: ## remove what was built and cached; keeps .venv and every campaign
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
