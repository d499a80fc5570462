# make demo and make test do all set-up themselves: a virtual environment, the packages, the build.
# They need Python 3.11 or newer with its headers, a C compiler and make; the tests marked kafka also Java and Maven.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

SOURCES := setup.py pyproject.toml $(wildcard kstore/*.pyx kstore/*.pxd kstore/*.h)

# The packages of one list in pyproject.toml: $(call listed,["build-system"]["requires"])
listed = $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))$(1))')

# Packages with compiled modules, whose stubs mypy.stubtest compares with what was built.
COMPILED := $(patsubst kstore/%.pyx,kstore.%,$(wildcard kstore/*.pyx))

# What the checked builds run: everything that hands bytes to the compiled modules, a new file without being asked. Left
# out are decisions and small texts, all in Python, and stories of disks, crashes and processes: those hand the core
# nothing new, and take minutes each where every access is checked.
PLAIN   := docs layers kafka_% cli% progress cautions checkpoint config% coordinator epochs faultfs fs goldensets names placement \
	retention% scanning scheduler spark spark_ingest spark_options store% testcases topics groups transactions% bad_input columns_engines
STORIES := adopt_crash adopt_finish corners crash durable exactly_once export full_disk golden_recovery golden_write group_commit \
	indexfile_elsewhere ingest interruptions machine machine_producers openfiles parking processes recovery repair spark_driver \
	topicreads undisturbed
CHECKED  = $(filter-out $(patsubst %,tests/test_%.py,$(PLAIN) $(STORIES)),$(wildcard tests/test_*.py))

# make test ends within this, whatever hangs.
TEST_MINUTES ?= 20

.PHONY: help demo demo-spark test lint bench soak fuzz docs debug sanitize jvm dist clean

help:
	@echo 'make demo      pour 336,776 real flights into a log and look around in it'
	@echo 'make demo-spark the flights through a Spark DataFrame into 16 partitions, and back'
	@echo 'make test      lint, types, stubs, every test (at most $(TEST_MINUTES) minutes)'
	@echo 'make bench     the speed tables, with peers, and build/bench.json (BENCH=-k append for one question)'
	@echo 'make soak      the time-boxed tests for ten times as long; make fuzz: the parsers only'
	@echo 'make debug     build with bounds checks and test; make sanitize: with ASan and UBSan'
	@echo 'make lint      ruff, mypy, stubtest;  make jvm: the Java side of the kafka tests'
	@echo 'make docs      docs/configuration.md and docs/cli.md, from the code;  make dist: sdist and wheel;  make clean'

# --- set-up -----------------------------------------------------------------------------------------------------------

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'kstore needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'python3 -m venv failed; on Debian: apt-get install python3-venv'; exit 1; }
	@touch $@

# The build's own packages, then kstore in place: its compiled modules land in kstore/ and follow the checkout.
$(VENV)/.built: $(VENV)/.created $(SOURCES)
	@$(PIP) install $(call listed,["build-system"]["requires"])
	$(PIP) install --no-build-isolation --editable .
	@touch $@

$(VENV)/.%-tools: $(VENV)/.built pyproject.toml
	@$(PIP) install $(call listed,["project"]["optional-dependencies"]["$*"])
	@touch $@

# --- what the README names --------------------------------------------------------------------------------------------

demo: $(VENV)/.built
	$(BIN)/python examples/flights.py demo

demo-spark: $(VENV)/.test-tools
	$(BIN)/python -W ignore::FutureWarning examples/flights_spark.py demo

test: lint jvm
	timeout --signal=INT --kill-after=60 $(TEST_MINUTES)m $(BIN)/pytest -n 2 --dist loadfile -m 'not slow'

lint: $(VENV)/.test-tools
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(if $(COMPILED),$(BIN)/python -m mypy.stubtest --concise --allowlist tests/stubtest.txt --ignore-unused-allowlist $(COMPILED))

docs: $(VENV)/.test-tools
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_cli.py

bench: $(VENV)/.bench-tools
	@mkdir -p build
	$(BIN)/pytest bench -o 'python_files=bench_*.py' -o timeout=1200 -o tmp_path_retention_policy=none --basetemp=build/bench.tmp --benchmark-enable \
		--benchmark-json=build/bench.json --benchmark-quiet -q $(BENCH)

soak: $(VENV)/.test-tools jvm
	KSTORE_BUDGET=10 $(BIN)/pytest -o timeout=7200

fuzz: $(VENV)/.test-tools
	KSTORE_BUDGET=40 $(BIN)/pytest -o timeout=7200 $(wildcard tests/test_fuzz*.py)

# --- checked builds ---------------------------------------------------------------------------------------------------
# Each is built into build/<name>/lib and tested from there; KSTORE_BUILD makes the tests refuse any other copy.

debug: $(VENV)/.test-tools
	KSTORE_DEBUG=1 $(BIN)/python setup.py -q build --build-base build/debug --build-lib build/debug/lib
	KSTORE_BUDGET=0.3 KSTORE_BUILD=build/debug/lib PYTHONPATH=build/debug/lib $(BIN)/pytest -m 'not slow and not kafka and not spark' $(CHECKED)

# Python itself is not built with the sanitizers: their run-time library is loaded before it. Python's own allocator would
# hide overruns inside its arenas, hence PYTHONMALLOC; what the interpreter never frees would drown real leaks.
SANITIZER = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

sanitize: $(VENV)/.test-tools
	KSTORE_SANITIZE=1 $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib build/sanitize/lib
	$(SANITIZER) KSTORE_BUDGET=0.3 KSTORE_BUILD=build/sanitize/lib PYTHONPATH=build/sanitize/lib \
		$(BIN)/pytest -n 2 --dist loadfile -m 'not slow and not kafka and not spark' -p no:faulthandler -o timeout=900 $(CHECKED)

# --- Java -------------------------------------------------------------------------------------------------------------

jvm:
	@if [ ! -f tests/jvm/pom.xml ]; then echo 'no tests/jvm/pom.xml: nothing to build'; \
	elif ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
		echo 'Maven or a Java compiler is missing: the tests marked kafka will skip and say so'; \
	else mvn -B -q -f tests/jvm/pom.xml package; fi

# --- packages ---------------------------------------------------------------------------------------------------------

dist: $(VENV)/.test-tools
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks tests/jvm/target \
		bench/krabka/target
	rm -f kstore/*.so kstore/*.c kstore/*.html
