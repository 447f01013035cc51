# A fresh machine needs Python 3.11, git and make; everything else is installed into .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PART := $(BIN)/python tools/run_parts.py

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint types imports docs tests quick whole format clean

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{ printf "make %-9s %s\n", $$1, $$2 }'

venv: $(INSTALLED) ## Install Lehr and its test tools into .venv

# Made anew, not updated, whenever the dependencies change: what is installed is then always what the two files say.
# Python compiles a module when it is first loaded; most of what is installed never is.
define install
	@$(PYTHON) -c 'import sys; sys.exit("Lehr needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(@D); this takes a few minutes."
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.$(1)'
	@touch $@
endef

# In a variable, since `call` would split it at the comma.
TOOLS := [test,docs]

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,$(TOOLS))

build/demo/.installed: pyproject.toml constraints.txt
	$(call install,)

demo: build/demo/.installed ## Train privately on real images, and write a report; installs no test tools
	@build/demo/bin/python examples/demo.py

test: $(INSTALLED) ## Run every check, and say at the end how each went
	@$(PART)

lint: $(INSTALLED) ## Check style and formatting
	@$(PART) style formatting

types: $(INSTALLED) ## Check types
	@$(PART) types

imports: $(INSTALLED) ## Check which module imports which
	@$(PART) imports

docs: $(INSTALLED) ## Build the documentation site into build/site
	@$(PART) docs

tests: $(INSTALLED) ## Run the tests and examples alone
	@$(PART) tests

quick: $(INSTALLED) ## Run the tests that are not slow
	@$(PART) quick

whole: $(INSTALLED) ## Run the longest tests, at their full size
	@$(PART) whole

format: $(INSTALLED) ## Bring the code into its format
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format --quiet .

clean: ## Remove what make and the tools have made
	rm -rf $(VENV) demo build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
