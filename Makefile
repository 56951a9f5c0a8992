# The one list of developer commands; `make help` shows it. CI calls the same targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The oldest engine and the versions that clients pin have a separate environment (docs/adr/0038). These versions of
# numpy and onnxruntime have packages for Python 3.11 and 3.12.
PINS := .venv-pins
PINS_PYTHON ?= $(PYTHON)
# The packages of serving and Ray also have a separate environment: they need an older protobuf than the digests of containers.
SCALE := .venv-scale
# The tests of compiling and running. Other tests do not depend on these packages (emulated cards, pages, texts of commands), or take
# minutes and show the same (threads).
PINS_TESTS := tests/unit tests/api tests/compilation tests/compiler tests/configs tests/options tests/qaicrt tests/qpc tests/quantized \
	tests/rt tests/session tests/stats tests/support tests/conformance tests/property \
	--ignore-glob='*/test_kmd_*' --ignore-glob='*/test_golden*' --ignore-glob='*/test_page*' --ignore-glob='*/test_stats_reports*'
# Tests that open no device give the same results on a card; in their folders, a test that opens one fails (tests/device_free.py).
# Tests with names test_kmd_ select emulated cards in every run, and the commands of the guides select their devices.
DEVICE_FREE_TESTS := tests/cli/compile tests/cli/opstats tests/cli/qpc tests/compiler tests/configs tests/forecast tests/options \
	tests/page tests/repository tests/stats tests/support
# The numbers of the engine and the output of the tools do not depend on the device; `make test-kmd-numbers` checks this. In every run,
# tests/property/test_kmd_models.py checks that random programs give the same results on both.
ABOVE_DEVICES_TESTS := tests/accuracy tests/cli tests/compilation tests/conformance tests/quantized \
	tests/rt/test_llm_exports.py tests/session/test_decoder_costs.py \
	$(filter-out tests/property/test_kmd_% %/test_exec_obj_properties.py %/test_decoder_states_in_place.py, \
		$(wildcard tests/property/test_*.py))
NOT_ON_KMD := --ignore-glob='*/test_kmd_*' --ignore-glob='*/test_guide_commands*'
KMD_TESTS := tests $(addprefix --ignore=,$(DEVICE_FREE_TESTS) $(ABOVE_DEVICES_TESTS)) $(NOT_ON_KMD)
WHEEL := target/wheel
# The models of the lock-free structures and of the scheduler, in a separate workspace.
LOOM := rust/qaic-sync/loom
# One build of the wheel serves every target; it is rebuilt when a source is newer.
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.js' -o -name '*.css' \
	-o -name '*.html' -o -name '*.json' -o -name '*.bash' -o -name '*.zsh' -o -name Cargo.toml) \
	Cargo.toml Cargo.lock pyproject.toml

# Without bytecode on disk, each test process would compile every module.
unexport PYTHONDONTWRITEBYTECODE

# Commands that check or write sources keep the editable installation, if there is one, and bring its module up to date.
ANY_INSTALLATION := $(if $(wildcard $(VENV)/.developed),develop,setup)

comma := ,
INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends

# Installs a package of Debian if none of some commands exists. Arguments: the commands, the package, the tests that need it.
define debian
@for name in $(1); do if command -v $$name >/dev/null; then exit; fi; done; \
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; \
then echo 'no $(firstword $(1)), and installing it takes root and apt-get: the tests of $(3) are skipped'; \
else $(INSTALL) $(2) >/dev/null || { apt-get update -qq && $(INSTALL) $(2) >/dev/null; } \
	|| echo '$(2) could not be installed: the tests of $(3) are skipped'; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: help setup environments develop demo test test-rust test-py test-kmd test-kmd-numbers adverse adverse-timing test-kernel test-pins test-scale explore browser java shells trained-models lint fmt features loom asan miri mutants fuzz-smoke bench accuracy accuracy-faults \
	node-tests real-models wheels licences site pictures docs clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("openqaic needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(WHEEL)/.built: $(BIN)/python $(SOURCES)
	@command -v cargo >/dev/null || { echo 'openqaic is built with Rust 1.92 or newer, and cargo is not in PATH: https://rustup.rs installs it' >&2; exit 1; }
	@echo 'building openqaic; this takes a few minutes'
	@rm -rf $(WHEEL)
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	@touch $@

# Uninstalled first, because pip skips a wheel whose version is installed.
define install
@echo 'installing openqaic and its tools into $(1)'
@$(1)/bin/python -m pip uninstall --quiet --quiet --yes openqaic
@$(1)/bin/python -m pip install --quiet "$$(echo $(WHEEL)/openqaic-*.whl)[$(2)]" $(3)
endef

$(VENV)/.installed: $(WHEEL)/.built
	$(call install,$(VENV),demo$(comma)plot$(comma)test$(comma)dev,--group golden)
	@rm -f $(VENV)/.developed
	@touch $@

$(PINS)/.installed: $(WHEEL)/.built
	@$(PINS_PYTHON) -c 'import sys; sys.exit("the pinned versions have packages for Python 3.11 and 3.12, this is " + sys.version.split()[0] + "; run make with PINS_PYTHON=python3.12" if not (3, 11) <= sys.version_info[:2] <= (3, 12) else 0)'
	@$(PINS_PYTHON) -m venv $(PINS)
	@$(PINS)/bin/python -m pip install --quiet --upgrade pip
	$(call install,$(PINS),test,--group pins)
	@$(PINS)/bin/python -m pip check
	@touch $@

setup: $(VENV)/.installed ## Build the package and install it with all its tools into .venv

# .venv contains the wheel or the editable package, whichever a target installed last.
$(VENV)/.developed: $(BIN)/python pyproject.toml
	@command -v cargo >/dev/null || { echo 'openqaic is built with Rust 1.92 or newer, and cargo is not in PATH: https://rustup.rs installs it' >&2; exit 1; }
	@echo 'building openqaic for development; this takes a few minutes the first time'
	@$(BIN)/python -m pip install --quiet 'maturin>=1.14,<2'
	@PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --extras demo,plot,test,dev --group golden
	@rm -f $(VENV)/.installed
	@touch $@

develop: $(VENV)/.developed ## Install the editable package into .venv, with debug Rust
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --skip-install

$(SCALE)/.installed: $(WHEEL)/.built
	@$(PYTHON) -m venv $(SCALE)
	@$(SCALE)/bin/python -m pip install --quiet --upgrade pip
	$(call install,$(SCALE),test$(comma)ray,--group scale)
	@$(SCALE)/bin/python -m pip check
	@touch $@

environments: setup $(PINS)/.installed $(SCALE)/.installed ## Make the environments of all tests; with -j3 at the same time

demo: setup ## Compile a real model and classify this repository's files
	$(BIN)/python -m qaic demo

test: test-rust test-py test-kmd ## Run all tests: Rust, Python, and Python on an emulated card

# The test that counts the costs of an inference on `cpu` needs the engine's library.
test-rust: setup
	QAIC_ONNXRUNTIME_LIB="$$($(BIN)/python -c 'from qaic import _core; print(_core.engine_info()[0])')" cargo test --workspace --quiet

# The tests of a file run in one process, in order. A process that crashes ends the run, because xdist could otherwise wait forever.
PROCESSES := $(shell nproc)
PARALLEL = -n $(or $(JOBS),$(PROCESSES)) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
DURATIONS := --durations=50 --durations-min=1

test-py: setup
	$(BIN)/python -m pytest -q $(PARALLEL) $(DURATIONS) tests

# Tests of threads wait for cards half of the time, so there is one process more than cores.
test-kmd: PROCESSES := $(shell expr $$(nproc) + 1)
test-kmd: setup ## Run the Python tests that open a device on an emulated card
	QAIC_DEVICE=kmd QAIC_KMD=emu $(BIN)/python -m pytest -q $(PARALLEL) $(DURATIONS) $(KMD_TESTS)

test-kmd-numbers: setup ## Run the tests of numbers, texts and tools on an emulated card
	QAIC_DEVICE=kmd QAIC_KMD=emu $(BIN)/python -m pytest -q $(PARALLEL) --whole $(ABOVE_DEVICES_TESTS) $(NOT_ON_KMD) \
		$(addprefix --ignore=,$(DEVICE_FREE_TESTS))

adverse: setup ## Run all tests ROUNDS times (2) under load, in random order
	tests/adverse.sh all $(BIN)/python

adverse-timing: setup ## Run the tests of time, signals and threads in this way
	tests/adverse.sh timing $(BIN)/python

test-kernel: setup ## Run the tests of cards on the mainline driver, in a guest
	tests/kernel/run.sh $(BIN)/python

test-pins: $(PINS)/.installed ## Run tests with the oldest engine and the pinned versions
	$(PINS)/bin/python -m pytest -q $(PARALLEL) --whole $(PINS_TESTS)

test-scale: $(SCALE)/.installed java ## Run the tests of serving, Ray, Spark and Dask
	$(SCALE)/bin/python -m pytest -q $(PARALLEL) tests/serving tests/ray tests/scale

explore: setup ## Run whole sweeps with new seeds, for TIME minutes (30)
	tests/explore.sh "$(TIME)" $(BIN)/python

browser: ## Install the browser for the tests of pages, if it is missing
	$(call debian,chromium chromium-browser google-chrome,chromium,pages in a browser)

java: ## Install Java for the tests of Spark, if it is missing
	$(call debian,java,default-jre-headless,Spark)

shells: ## Install zsh and fish for the tests of completion
	$(call debian,zsh,zsh,completion in zsh)
	$(call debian,fish,fish,completion in fish)

trained-models: $(BIN)/python ## Install the trained models for the tests of the examples
	@$(BIN)/python -m pip install --quiet --no-deps --group trained-models \
		|| echo 'trained-models could not be installed: tests of examples are skipped'

TEXTS := README.md CONTRIBUTING.md CHANGELOG.md docs python rust tools benches examples tests/kernel/pci_card

lint: $(ANY_INSTALLATION) ## Check formats, lints, layers, texts, sizes and types
	cargo fmt --all --check
	cargo fmt --manifest-path $(LOOM)/Cargo.toml --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet
	$(BIN)/ruff format --check python tests benches examples tools
	$(BIN)/ruff check python tests benches examples tools
	$(BIN)/lint-imports --no-logo --no-cache
	tools/wheels/check_licences.sh
	$(BIN)/codespell $(TEXTS)
	$(BIN)/proselint check --config tools/prose/proselint.json README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/*/*.md
	PYTHONPATH=tools $(BIN)/python -m prose
	PYTHONPATH=tools $(BIN)/python -m size
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest qaic._core --concise --allowlist tests/stubtest-allowlist.txt --ignore-unused-allowlist

fmt: $(ANY_INSTALLATION) ## Format everything
	cargo fmt --all
	cargo fmt --manifest-path $(LOOM)/Cargo.toml
	cargo fmt --manifest-path fuzz/Cargo.toml
	$(BIN)/ruff format python tests benches examples tools
	$(BIN)/ruff check --fix-only python tests benches examples tools

# Versions of separate tools are pinned here; the tools are stored with the build.
CARGO_HACK_VERSION := 0.6.46
TOOLS := target/tools

$(TOOLS)/bin/cargo-hack:
	@echo 'building cargo-hack: half a minute'
	@cargo install --quiet --debug --locked --root $(TOOLS) --version $(CARGO_HACK_VERSION) cargo-hack

# `make lint` checks the others.
WITH_FEATURES = $(notdir $(patsubst %/Cargo.toml,%,$(shell grep -l '^\[features\]' rust/*/Cargo.toml)))

features: $(TOOLS)/bin/cargo-hack ## Check every combination of the crates' features
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" cargo hack clippy $(addprefix -p ,$(WITH_FEATURES)) --all-targets \
		--feature-powerset --exclude-features default --quiet -- -D warnings

PREEMPTIONS ?= 3

loom: ## Check the lock-free structures against every interleaving
	LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom \
		cargo test --manifest-path $(LOOM)/Cargo.toml --release --locked --quiet

asan: ## Run the tests of concurrent and unsafe code under ASan
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_DIR=target/asan \
		cargo test --target $$(rustc -vV | sed -n 's/^host: //p') -p qaic-mem -p qaic-sync -p qaic-sched -p qaic-runtime --lib --tests --quiet

CARGO_MUTANTS_VERSION := 27.1.0
MUTATED ?= rust/qaic-sync/src/**

$(TOOLS)/bin/cargo-mutants:
	@echo 'building cargo-mutants: two minutes'
	@cargo install --quiet --locked --root $(TOOLS) --version $(CARGO_MUTANTS_VERSION) cargo-mutants

mutants: $(TOOLS)/bin/cargo-mutants ## List mistakes in MUTATED that no Rust test finds; takes hours
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" cargo mutants -f '$(MUTATED)' --all-features -o target/mutants

miri: ## Run tests of qaic-sync and qaic-mem under Miri; needs nightly
	cargo +nightly miri test -p qaic-sync -p qaic-mem --lib --target-dir target/miri

fuzz-smoke: ## Run every fuzz target for five seconds, and all past findings
	fuzz/smoke.sh 5

bench: setup ## Measure everything and write docs/performance.md
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python benches/report.py

accuracy-faults: setup ## Find the faulty node in 1,000 random graphs
	QAIC_FAULT_GRAPHS=1000 $(BIN)/python -m pytest -q tests/accuracy/test_faults.py --timeout 900

accuracy: setup ## Measure precision on trained models, write docs/accuracy.md
	$(BIN)/python -m pip install --quiet --no-deps --group accuracy
	$(BIN)/python benches/accuracy.py

real-models: setup ## Compare trained models, write docs/models.md
	$(BIN)/python benches/real_models.py

node-tests: setup ## Run ONNX's operator tests, and write the report
	$(BIN)/python benches/node_tests.py

# The machines of the wheels, and every installed Python that the package supports.
MACHINES ?= $(shell uname -m)
PYTHONS ?= $(PYTHON)

wheels: ## Build and test the wheels for MACHINES and PYTHONS
	tools/wheels/build.sh $(PYTHON) $(MACHINES)
ifneq ($(filter $(shell uname -m),$(MACHINES)),)
	tools/wheels/smoke_test.sh "$$(ls -t target/wheels/openqaic-*$$(uname -m).whl | head -1)" $(PYTHONS)
endif
ifneq ($(filter aarch64,$(filter-out $(shell uname -m),$(MACHINES))),)
	tools/wheels/smoke_test_aarch64.sh "$$(ls -t target/wheels/openqaic-*aarch64.whl | head -1)" $(PYTHON)
endif

CARGO_ABOUT_VERSION := 0.9.3

$(TOOLS)/bin/cargo-about:
	@echo 'building cargo-about: two minutes'
	@cargo install --quiet --locked --root $(TOOLS) --version $(CARGO_ABOUT_VERSION) --features cli cargo-about

licences: $(TOOLS)/bin/cargo-about ## Write THIRD-PARTY-LICENSES.md
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" cargo about generate --manifest-path rust/qaic-python/Cargo.toml \
		--config tools/wheels/about.toml --output-file THIRD-PARTY-LICENSES.md tools/wheels/about.hbs

site: setup ## Build the documentation site into target/site
	$(BIN)/python -m pip install --quiet --group site
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

pictures: setup browser ## Draw the pictures of the README, on an idle machine
	$(BIN)/python -m pip install --quiet --group pictures
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/pictures/readme.py

docs: $(ANY_INSTALLATION) ## Write the generated files: reference pages, stub, keywords
	$(call generate,docs/reference/options.md,options_page)
	$(call generate,docs/reference/options.schema.json,options_schema)
	$(call generate,docs/reference/flags.txt,options_page --flags)
	$(call generate,python/qaic/cli/openqaic/commands/error_codes.json,error_codes)
	$(call generate,docs/reference/errors.md,errors_page)
	$(call generate,docs/adr/README.md,decisions_page)
	$(call generate,docs/reference/passes.md,passes_page)
	$(call generate,docs/forecast.md,forecast_page)
	$(call generate,python/qaic/options/keywords.py,option_keywords)
	$(call generate,python/qaic/configs/aic_models.pyi,config_stub)

# Written to another file first, so that a failure keeps the old file.
define generate
@PYTHONPATH=tools $(BIN)/python -m generators.$(2) >$(1).new || { rm -f $(1).new; exit 1; }
@cmp -s $(1).new $(1) && rm $(1).new || { mv $(1).new $(1); echo 'wrote $(1)'; }
endef

clean: ## Remove all build products
	rm -rf $(VENV) $(PINS) $(SCALE) target fuzz/target
