# make demo and make test do all set-up themselves: a virtual environment, the packages, the build.
# They need Python 3.11 or newer with its headers, a C compiler and make; the tests marked kafka also Java and Maven.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

# Where this is set, each of the thousands of processes that the tests start compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := setup.py pyproject.toml $(shell find kstore -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -path 'kstore/c/*.c')

# The packages of one list in pyproject.toml: $(call listed,["build-system"]["requires"])
listed = $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))$(1))')

# The compiled modules, whose stubs mypy.stubtest compares with what was built: kstore.codec._pack and its like.
COMPILED := $(subst /,.,$(patsubst %.pyx,%,$(shell find kstore -name '*.pyx')))

# The checked builds run the tests of the packages that hand bytes to the compiled modules, those of new files included. STORIES
# are left out: tests of disks, crashes and processes, which hand the core no other bytes and take minutes where every access
# is checked.
PACKAGES := codec columns files golden log search security store/bulk_loads/test_bulk_loads.py store/topics tools
STORIES := files/test_index_file_elsewhere \
	golden/test_golden_recovery golden/test_golden_write \
	log/test_durable log/test_group_commit log/test_parking \
	log/compaction/test_beside log/compaction/test_readers_elsewhere log/compaction/test_swap \
	log/segments/test_clean_marker log/segments/test_log_start log/segments/test_recovery \
	log/segments/test_retention log/segments/test_retention_log log/segments/test_retention_story \
	search/test_soak \
	security/test_bad_input security/test_hostile_files security/test_links \
	store/topics/test_topic_reader \
	tools/test_recheck tools/test_repair tools/test_verify
CHECKED  = $(PACKAGES:%=tests/%) $(STORIES:%=--ignore=tests/%.py)

# A run of the tests is stopped after so many minutes: pytest-xdist may wait forever for a worker that was killed.
TEST_MINUTES ?= 50
stopped = env --default-signal=INT timeout --signal=INT --kill-after=60 $(TEST_MINUTES)m
# make soak runs for so many hours.
HOURS ?= 8

# Two workers, a file at a time. tests/conftest.py says in which order.
PARALLEL = -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help demo demo-spark test spark-versions engine-versions quick lint lint-workflows bench bench-all instructions instructions-keep soak fuzz docs site plain sanitize fuzz-keep leaks tsan jvm dist wheel wheels codecs clean

help:
	@echo 'make demo      pour 336,776 real flights into a log and look around in it'
	@echo 'make demo-spark the flights through Spark into 16 partitions and back, and as streams'
	@echo 'make quick     ruff and the tests of the core: formats, files, logs, stores; for the inner loop'
	@echo 'make test      lint, types, stubs, every test (at most $(TEST_MINUTES) minutes); TESTS=tests/log for a part'
	@echo 'make spark-versions  the tests that run Spark, with PySpark $(SPARK_VERSIONS); they take minutes each'
	@echo 'make engine-versions  the tests of datasets with $(ENGINE_VERSIONS)'
	@echo 'make bench     the speed tables, with peers, written into bench/results; under 15 minutes'
	@echo 'make bench-all the other tables (of both: BENCH="-k append" for a part, which is printed only)'
	@echo 'make instructions  instructions of the hot paths beside the known ones (needs valgrind);'
	@echo '               make instructions-keep: the counted ones become the known ones'
	@echo 'make soak      the tests with new random choices for $(HOURS) hours, and a report'
	@echo 'make fuzz      all parsers, $(FUZZ_MINUTES) minutes each, guided by the code that is reached (needs clang);'
	@echo '               make fuzz-keep: add the inputs that reached new code to the corpus'
	@echo 'make sanitize  build with bounds checks, ASan and UBSan, and test; make leaks: with LeakSanitizer'
	@echo 'make plain     the codecs without liblz4 and libzstd'
	@echo 'make tsan      look for data races with ThreadSanitizer'
	@echo 'make lint      ruff, mypy, stubtest;  make jvm: the Java side of the kafka tests'
	@echo 'make lint-workflows  zizmor and actionlint (needs Go) on .github, and the schemas of its forms'
	@echo 'make docs      the pages, the pictures and the typed settings that are made from the code'
	@echo 'make site      the site with the API reference, from docs/ and the docstrings, in build/site'
	@echo 'make wheel     sdist and wheel, tested;  make wheels: for all Pythons and processors;  make dist: the sdist'
	@echo 'make codecs    the C sources of lz4 and zstd that wheels contain;  make clean: remove all that was built'

# --- set-up -----------------------------------------------------------------------------------------------------------

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'kstore needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'python3 -m venv failed; on Debian: apt-get install python3-venv'; exit 1; }
	@touch $@

# The build's own packages, then kstore in place: its compiled modules land in kstore/ and follow the checkout. pip compiles all of
# them. After a change of sources alone, only what depends on it is compiled: build/inplace has what is there already.
$(VENV)/.built: $(VENV)/.created $(SOURCES)
	$(if $(filter $(VENV)/.created setup.py pyproject.toml,$?),$(install),$(BIN)/python setup.py -q build_ext --inplace --build-lib build/inplace)
	@touch $@
install = $(PIP) install $(call listed,["build-system"]["requires"]) && $(PIP) install --no-build-isolation --editable . && \
	rm -rf build/inplace && mkdir -p build/inplace && find kstore -name '*.so' -exec cp -p --parents {} build/inplace \;

# These need no build.
$(VENV)/.workflows-tools: $(VENV)/.created pyproject.toml
	@flock $(VENV) $(PIP) install $(call listed,["dependency-groups"]["workflows"])
	@touch $@

# With -j one list waits for the other: pip would find half of a package that both install.
$(VENV)/.%-tools: $(VENV)/.built pyproject.toml
	@flock $(VENV) $(PIP) install $(call listed,["dependency-groups"]["$*"])
	@touch $@

# --- what users and developers run ------------------------------------------------------------------------------------

demo: $(VENV)/.built
	$(BIN)/python examples/flights.py demo

demo-spark: $(VENV)/.test-tools
	$(BIN)/python -W ignore::FutureWarning examples/flights_spark.py demo

test: lint jvm
	$(stopped) $(BIN)/pytest $(PARALLEL) -m 'not slow' -o cache_dir=build/test/cache $(TESTS)

# The tests that run Spark with older versions of PySpark: each has an environment, which finds all else in $(VENV). Those before
# 4.2 do not close their sockets. What compares with Spark's Kafka source needs the connector of the version, and is left out.
SPARK_VERSIONS ?= 4.2 4.1 4.0
spark-versions: $(SPARK_VERSIONS:%=build/spark/%/.created)
	for version in $(SPARK_VERSIONS); do \
		$(stopped) build/spark/$$version/bin/python -m pytest $(PARALLEL) -m 'spark and not kafka and not slow' \
			-W 'ignore:unclosed <socket.socket:ResourceWarning' -o cache_dir=build/spark/$$version/cache $(TESTS) || exit 1; \
	done

# The tests of datasets with the minor versions of the engines before the newest.
ENGINE_VERSIONS ?= duckdb==1.5.* polars==2.0.* pyarrow==25.* pytz
engine-versions: build/engines/.created
	$(stopped) build/engines/bin/python -m pytest $(PARALLEL) -o cache_dir=build/engines/cache tests/datasets tests/decoders $(TESTS)

build/engines/.created: | $(VENV)/.test-tools
	$(BIN)/python -m venv --clear $(@D)
	echo "import site; site.addsitedir('$(call purelib,$(BIN))')" >$(call purelib,$(@D)/bin)/kstore-tests.pth
	$(@D)/bin/python -m pip --disable-pip-version-check -q install $(ENGINE_VERSIONS:%='%')
	@touch $@

purelib = $$($(1)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
build/spark/%/.created: | $(VENV)/.test-tools
	$(BIN)/python -m venv --clear $(@D)
	echo "import site; site.addsitedir('$(call purelib,$(BIN))')" >$(call purelib,$(@D)/bin)/kstore-tests.pth
	$(@D)/bin/python -m pip --disable-pip-version-check -q install 'pyspark==$*.*'
	@touch $@

# For the inner loop: what a change of the core breaks first, with few examples of each random test. SLOW is left to make test.
QUICK := codec columns config files golden log store promises/test_machine.py
SLOW := columns/test_columns_ahead columns/test_columns_engines columns/test_columns_pickled columns/test_columns_pieces \
	columns/test_columns_runs columns/test_columns_threads files/test_index_file_disk files/test_index_file_elsewhere \
	golden/test_golden_kstore_0_1 log/test_parking log/test_unclosed \
	log/compaction/test_beside log/compaction/test_readers_elsewhere log/compaction/test_swap \
	log/segments/test_log_start log/segments/test_recovery log/segments/test_retention_log \
	store/bulk_loads/test_bulk_loads_crash store/bulk_loads/test_bulk_loads_finish \
	store/coordinator/test_positions_elsewhere store/test_leadership_change store/test_store_processes
quick: $(VENV)/.test-tools
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	KSTORE_BUDGET=0.05 $(stopped) $(BIN)/pytest $(PARALLEL) -q -m 'not slow and not kafka and not spark' -o cache_dir=build/quick/cache \
		$(QUICK:%=tests/%) $(SLOW:%=--ignore=tests/%.py) $(TESTS)

# What was checked is not checked again until it changes.
lint: build/lint/.passed
TEXTS = $(shell find . -name .venv -prune -o -path ./build -prune -o -name '*.py' -print -o -name '*.pyi' -print)
build/lint/.passed: $(VENV)/.test-tools tests/stubtest.txt build/lint/names $(TEXTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(if $(COMPILED),$(BIN)/python -m mypy.stubtest --concise --allowlist tests/stubtest.txt --ignore-unused-allowlist $(COMPILED))
	@touch $@
build/lint/names: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(TEXTS) | sort >$@.new; cmp -s $@.new $@ || mv $@.new $@
FORCE:

# The workflows run elsewhere; here they are read. zizmor looks for what an attacker could use, actionlint for what would not run.
# This version of actionlint is the last that Debian 12's Go compiles.
ACTIONLINT := v1.7.7
lint-workflows: build/lint/.workflows-passed
build/lint/.workflows-passed: $(VENV)/.workflows-tools $(wildcard .github/*.yml .github/*/*.yml)
	@mkdir -p $(@D)
	$(BIN)/zizmor --offline --quiet --persona=pedantic .github
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@if command -v go >/dev/null; then \
		test -x build/lint/$(ACTIONLINT)/actionlint || \
			GOBIN=$(CURDIR)/build/lint/$(ACTIONLINT) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT); \
		echo build/lint/$(ACTIONLINT)/actionlint; build/lint/$(ACTIONLINT)/actionlint && touch $@; \
	else echo 'Go is missing: actionlint is left out; on Debian: apt-get install golang-go'; fi

docs: $(VENV)/.test-tools
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_keywords.py
	$(BIN)/python docs/make_stubs.py
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_names.py
	$(BIN)/python docs/make_layers.py
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_page_picture.py

# Strict: a dead link, an unknown name or a page without a place in the navigation fails. Nothing is kept from an earlier
# run, whose warnings would be lost.
site: $(VENV)/.docs-tools
	@rm -rf build/site
	$(BIN)/python -m sphinx -q -E -W --keep-going -n -d build/site.cache docs build/site
	$(BIN)/python docs/check_site.py build/site

# bench/results: `make bench` takes less than 15 minutes on two quiet processors, make bench-all measures the other
# questions. bench/tables.py writes the tables and those of docs/. With BENCH=... a part is measured and printed, and no file
# changes. A question that fails does not keep the others out of the results.
TABLES = kafka log points index recovery columns_in columns users verify crc32c store follow transactions
ALL    = $(filter-out $(TABLES),$(patsubst bench/bench_%.py,%,$(wildcard bench/bench_*.py)))
SCALE ?= 0.25

# $(call measured,<name of the run>,<files>)
define measured
	@mkdir -p build
	KSTORE_BENCH_SCALE=$(SCALE) KSTORE_BENCH_COMMAND="make $(1)" $(BIN)/pytest $(2) -o 'python_files=bench_*.py' -o timeout=1200 \
		-o tmp_path_retention_policy=none --basetemp=build/$(1).tmp --benchmark-enable --benchmark-json=build/$(1).json \
		--benchmark-quiet -q $(BENCH); \
	failed=$$?; $(if $(BENCH),true,$(BIN)/python bench/tables.py build/$(1).json) && exit $$failed
endef

bench: $(VENV)/.bench-tools jvm
	$(call measured,bench,$(if $(BENCH),bench,$(TABLES:%=bench/bench_%.py)))

bench-all: $(VENV)/.bench-tools jvm
	$(call measured,bench-all,$(ALL:%=bench/bench_%.py))

# Without a clock, so it tells the same on a busy machine; bench/instructions.py says when it fails.
instructions: $(VENV)/.test-tools
	$(BIN)/python bench/instructions.py

instructions-keep: $(VENV)/.test-tools
	$(BIN)/python bench/instructions.py keep

soak: $(VENV)/.test-tools jvm
	$(BIN)/python tests/search/soak.py --hours $(HOURS)

# --- checked builds ---------------------------------------------------------------------------------------------------
# Each is built into build/<name>/lib and tested from there; KSTORE_BUILD makes the tests refuse any other copy.

build/%/.built: $(VENV)/.test-tools $(SOURCES) $(shell find kstore -name '*.py')
	KSTORE_CHECKED=$* $(BIN)/python setup.py -q build --build-base build/$* --build-lib build/$*/lib
	@touch $@

# Only the module that is linked with liblz4 and libzstd differs, so the others are copied.
build/plain/.built: $(VENV)/.test-tools $(SOURCES) $(shell find kstore -name '*.py')
	@rm -rf build/plain && mkdir -p build/plain/lib
	find kstore -name '*.so' ! -name '_compression.*' -exec cp --parents -t build/plain/lib {} +
	KSTORE_CODECS=none $(BIN)/python setup.py -q build --build-base build/plain --build-lib build/plain/lib
	@touch $@

# The tests of a checked build: $(call tested,<name>)
tested = KSTORE_BUDGET=0.3 KSTORE_BUILD=build/$(1)/lib PYTHONPATH=build/$(1)/lib $(stopped) $(BIN)/pytest -m 'not slow and not kafka and not spark' \
	-o cache_dir=build/$(1)/cache
preloaded = LD_PRELOAD="$$(gcc -print-file-name=$(1)) $$(gcc -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc

# Bounds checks find what stays inside of an allocation, such as an item beyond the end of a list; the sanitizers find the rest.
# Python itself is not built with them: their run-time library is loaded before it. Python's own allocator would
# hide overruns inside its arenas, hence PYTHONMALLOC. Leaks are looked for by make leaks.
SANITIZER = $(call preloaded,libasan.so) ASAN_OPTIONS=detect_leaks=$(1):abort_on_error=$(2):allocator_may_return_null=1$(3) \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1$(4)

# A worker that the sanitizers end cannot print what pytest has captured: the reports go to files.
REPORTS = build/sanitize/report
sanitize: build/sanitize/.built
	@rm -f $(REPORTS).*
	$(call SANITIZER,0,1,:log_path=$(REPORTS),:log_path=$(REPORTS)) $(call tested,sanitize) $(PARALLEL) -p no:faulthandler \
		-o timeout=900 $(CHECKED) $(TESTS) || { head -n 40 $(REPORTS).* 2>/dev/null; exit 1; }

plain: build/plain/.built
	$(call tested,plain) -n 2 --dist worksteal $(UNLINKED) $(TESTS)
UNLINKED = $(addprefix tests/,codec/test_compression.py codec/test_core.py codec/test_unpack.py columns/test_columns_compressed.py \
	columns/test_native.py golden/test_golden_read.py log/compaction/test_filter.py cli/test_cli_process.py::test_the_overview_names_every_command_in_order \
	cli/test_ingest.py::test_packed_files_are_unpacked_whatever_their_name \
	cli/test_ingest.py::test_what_is_wrong_is_one_line_and_nothing_is_stored \
	security/test_bombs.py::test_a_stream_of_empty_frames_takes_time_by_its_size_alone \
	'security/test_bombs.py::test_a_batch_that_decompresses_to_gigabytes_is_an_error_in_bounded_memory[zstd]')

# Every kind of call, also with damaged bytes. Python, NumPy and the engines leak a little when they end: tests/search/leaks.py
# counts only what our modules have allocated, and needs whole stacks for that.
leaks: build/sanitize/.built
	@rm -f build/sanitize/leaks.*
	$(call SANITIZER,1,0,:exitcode=0:fast_unwind_on_malloc=0:malloc_context_size=24:log_path=build/sanitize/leaks) \
		$(call tested,sanitize) -p no:faulthandler -o timeout=900 $(LEAKY)
	$(BIN)/python tests/search/leaks.py build/sanitize/leaks.*
LEAKY = -k 'keep or leak or outlive' tests/search/test_leaks.py tests/columns/test_columns_engines.py

# Threads that share work in C, and readers beside a writer, in all processes of a test. Python is not instrumented; but
# ThreadSanitizer sees its mutexes, the interpreter's lock among them, and so the order that they make. It takes the size of a
# thread's own data in a library that was loaded late from bytes that do not say it, and then asks for terabytes: it may not.
RACES = build/tsan/races
tsan: build/tsan/.built
	@rm -f $(RACES).*
	$(UNMOVED) $(call preloaded,libtsan.so) TSAN_OPTIONS=ignore_noninstrumented_modules=1:history_size=4:intercept_tls_get_addr=0:log_path=$(RACES) \
		$(call tested,tsan) -n 2 --dist worksteal -p no:faulthandler -o timeout=900 $(THREADED) $(TESTS) \
		|| { cat $(RACES).* 2>/dev/null; exit 1; }
	@if ls $(RACES).* >/dev/null 2>&1; then cat $(RACES).*; exit 1; fi
# ThreadSanitizer cannot start where the system has put memory at addresses that it wants for itself.
UNMOVED = $(shell setarch -R true 2>/dev/null && echo setarch -R env)
# Nor can it start threads in a forked child.
THREADED = -k 'not forked_child or of_its_own' tests/columns/test_columns_threads.py tests/columns/test_columns_ahead.py tests/promises/test_processes.py \
	tests/log/test_group_commit.py

# Each parser for FUZZ_MINUTES, two at a time, guided by the branches that its inputs reach. Inputs that fail are kept in
# build/fuzz/found. `make fuzz-keep` adds the inputs that reached new branches to the corpus, which every test run goes through.
FUZZ_MINUTES ?= 10
PARSERS = $(basename $(notdir $(wildcard tests/search/corpus/*.hex)))
RUNTIME = $$(clang -print-runtime-dir)
FUZZER = LD_PRELOAD="$(CURDIR)/build/coverage/fuzzer.so $(RUNTIME)/libclang_rt.asan-x86_64.so $$(gcc -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1:handle_abort=0 PYTHONMALLOC=malloc PYTHONHASHSEED=0 \
	PYTHONPATH=$(CURDIR)/build/coverage/lib:$(CURDIR) KSTORE_FUZZER=$(CURDIR)/build/coverage/fuzzer.so $(BIN)/python -P tests/search/fuzz.py

build/coverage/.built: export CC = clang
build/coverage/.built: export LDSHARED = clang -shared

build/coverage/fuzzer.so: tests/search/fuzz_driver.c
	@command -v clang >/dev/null || { echo 'fuzzing needs clang; on Debian: apt-get install clang libclang-rt-14-dev'; exit 1; }
	@mkdir -p $(@D)
	clang -shared -fPIC -O1 -o $@ $< -Wl,--whole-archive $(RUNTIME)/libclang_rt.fuzzer_no_main-x86_64.a -Wl,--no-whole-archive \
		-lstdc++ -lm -lpthread

fuzz: build/coverage/fuzzer.so build/coverage/.built
	@mkdir -p build/fuzz/found
	printf '%s\n' $(PARSERS) | xargs -P 2 -I{} sh -c '$(FUZZER) run {} build/fuzz/{} -max_total_time=$$(($(FUZZ_MINUTES) * 60)) \
		-rss_limit_mb=4096 -timeout=60 -artifact_prefix=build/fuzz/found/{}- >build/fuzz/{}.log 2>&1 || { tail -40 build/fuzz/{}.log; exit 1; }; \
		echo "{}: $$(grep -h "DONE" build/fuzz/{}.log)"'

fuzz-keep: build/coverage/fuzzer.so build/coverage/.built
	for parser in $(PARSERS); do $(FUZZER) keep $$parser build/fuzz/$$parser; done

# --- Java -------------------------------------------------------------------------------------------------------------

jvm:
	@if [ ! -f tests/kafka/jvm/pom.xml ]; then echo 'no tests/kafka/jvm/pom.xml: nothing to build'; \
	elif ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
		echo 'Maven or a Java compiler is missing: the tests marked kafka will skip and say so'; \
	else mvn -B -q -f tests/kafka/jvm/pom.xml package; fi

# --- packages ---------------------------------------------------------------------------------------------------------

dist: $(VENV)/.test-tools
	$(BIN)/python -m build --sdist --outdir dist .

# The sdist, and from it the wheels into dist: of all supported Pythons, for x86-64 and aarch64, or WHEELS=3.13-x86_64.
# Pythons come from Maven Central. qemu-user-static runs what this machine cannot; without it that is not tested.
wheels: $(VENV)/.release-tools
	$(BIN)/python packaging/wheels.py $(WHEELS)

# The sdist, and the wheel of this Python and this machine.
wheel: $(VENV)/.release-tools
	$(BIN)/python packaging/wheels.py here

# The C sources of lz4 and zstd, for a build with KSTORE_CODECS=build/codecs.
codecs: $(VENV)/.created
	$(BIN)/python packaging/fetch_codecs.py

clean:
	rm -rf build dist $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks tests/kafka/jvm/target \
		bench/krabka/target
	find kstore -name '*.so' -delete -o -name '*.html' -delete -o -path kstore/c -prune -o -name '*.c' -delete
