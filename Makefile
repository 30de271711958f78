PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: quickstart demo help as2 as2-noise transtqa rerank dose format lint test-fast test find-browser test-slow bench \
	gpu-kit gpu

# `make` alone is `make quickstart`. `make help` prints what stands behind ## in this file.
.DEFAULT_GOAL = quickstart

# Ends a target in one line where a variable that names its data is empty; (2) says what the data is.
require = @test -n "$($(1))" || { echo "error: name $(2): make $@ $(1)=..." >&2; exit 2; }

# A marker, so that only a change of what is installed installs again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	touch $@

# all-MiniLM-L6-v2, Python's documentation, and questions that are shipped: 60 to learn from and 300 to test.
quickstart: $(INSTALLED)  ## Install, pre-train and fine-tune for minutes, and say which ranker is best (the default).
	$(BIN)/kinspan adapt --documents python-docs --questions selqa-sample --budget 3200pairs --output_dir runs/quickstart

# Python's documentation, searched. The first time it is encoded, for minutes.
demo: $(INSTALLED)  ## Install, index Python's documentation, and open a page that answers questions about Python.
	$(BIN)/kinspan index --documents python-docs --output_dir runs/demo
	$(BIN)/kinspan serve --index runs/demo --examples docs/questions.txt

# Does SSP help ranking? Its checkpoint and one of MLM alone, on the same texts, are fine-tuned and compared.
AS2_TEXT ?= $(wildcard ../shared/data/corpus/enwiki2015_AA.jsonl.xz)
AS2_DATA ?= $(foreach name,$(notdir $(wildcard ../shared/data/as2/wikiqa ../shared/data/as2/trecqa)),$(name)=../shared/data/as2/$(name))
require_as2 = $(call require,AS2_DATA,data sets such as wikiqa=FOLDER trecqa=FOLDER)
AS2_MODEL ?= $(wildcard ../shared/models/all-MiniLM-L6-v2-fp16)
AS2_FLAGS = $(if $(AS2_MODEL),--model $(AS2_MODEL))
AS2_TOKENIZER = $(or $(AS2_MODEL),$(shell $(BIN)/python -c 'from data_pipeline.core.default_model import default_model as m; print(m())'))

as2: $(INSTALLED)  ## Pre-train on Wikipedia, fine-tune on WikiQA and TREC-QA, with and without SSP: a table.
	$(call require,AS2_TEXT,a file of documents)
	$(require_as2)
	$(BIN)/kinspan prepare --input $(AS2_TEXT) --tokenizer $(AS2_TOKENIZER) --output_dir corpora/as2
	for loss in ssp mlm; do \
		$(BIN)/kinspan pretrain --config launch/recipes/as2-$$loss.yaml --corpus corpora/as2 $(AS2_FLAGS) --output_dir runs/as2/$$loss && \
		$(BIN)/kinspan release --run_dir runs/as2/$$loss --output_dir runs/as2/$$loss/release || exit; \
	done
	$(BIN)/kinspan study --study launch/recipes/as2.yaml --data $(AS2_DATA) --output_dir runs/as2/study $(AS2_FLAGS)

# What flipped labels cost, fine-tuned and with TANDA.
as2-noise: $(INSTALLED)  ## Fine-tune with flipped labels, with TANDA and without.
	$(require_as2)
	$(BIN)/kinspan study --study launch/recipes/as2-noise.yaml --data $(firstword $(AS2_DATA)) --transfer $(lastword $(AS2_DATA)) --output_dir runs/as2/noise $(AS2_FLAGS)

# TransTQA's four settings, with its table: hours on two cores; the same command goes on where it was cut short.
# TRANSTQA_TEXT: documents that stand in for IBM's Technotes, forums among them. TRANSTQA_MODEL: another start, such as an
# encoder of your own that has seen no such questions. TRANSTQA_FLAGS: --set seeds=1 tries it out.
TRANSTQA_DATA ?= $(wildcard ../shared/data/technicalqa)
TRANSTQA_TEXT ?= python-docs $(wildcard ../shared/data/stackexchange/quantumcomputing/Posts.xml.xz)
TRANSTQA_MODEL ?= $(AS2_MODEL)
TRANSTQA_RUN ?= runs/transtqa

transtqa: $(INSTALLED)  ## Train a bi-encoder by transfer in steps and search TechQA's answers: a table. Hours.
	$(call require,TRANSTQA_DATA,a folder with training_Q_A.json and dev_Q_A.json (TechQA) and askubuntu-train_Q_A.raw)
	$(BIN)/kinspan prepare --input $(TRANSTQA_TEXT) --tokenizer $(or $(TRANSTQA_MODEL),$(AS2_TOKENIZER)) --output_dir $(TRANSTQA_RUN)/corpus
	$(BIN)/kinspan study --study launch/recipes/transtqa.yaml --data techqa_pool=$(TRANSTQA_DATA) --where corpus=$(TRANSTQA_RUN)/corpus source=askubuntu_qa=$(TRANSTQA_DATA) --output_dir $(TRANSTQA_RUN)/study $(if $(TRANSTQA_MODEL),--model $(TRANSTQA_MODEL)) $(TRANSTQA_FLAGS)

# The answers of a data set are searched, and what is found is ranked again by cross-encoders that are trained here.
# RERANK_SOURCE: the data set, as launch/finetune.py takes it; RERANK_TEXT: documents for the pre-training; RERANK_SET:
# settings of the fine-tuning, such as max_steps=200. docs/search.md has the commands for other data sets.
RERANK_SOURCE ?= $(addprefix insuranceqa=,$(wildcard ../shared/data/as2/insuranceqa))
RERANK_TEXT ?= $(wildcard ../shared/data/as2/insuranceqa/answers.jsonl.xz)
RERANK_RUN ?= runs/rerank-$(subst /,_,$(RERANK_SOURCE))
RERANK_QUESTIONS ?= 500

rerank: $(INSTALLED)  ## Train cross-encoders that re-rank InsuranceQA's answers, and measure both stages: hours.
	$(call require,RERANK_SOURCE,a data set such as insuranceqa=FOLDER)
	$(call require,RERANK_TEXT,a file of documents)
	$(BIN)/kinspan index --answers $(RERANK_SOURCE) --output_dir $(RERANK_RUN)/index
	test -f $(RERANK_RUN)/mined/train.jsonl || $(BIN)/kinspan data mine --data $(RERANK_SOURCE) --max_length 128 --output_dir $(RERANK_RUN)/mined
	test -f $(RERANK_RUN)/questions/dev.jsonl || $(BIN)/python benchmarks/search.py --index $(RERANK_RUN)/index --data $(RERANK_SOURCE) --split dev --questions 200 --candidates_to $(RERANK_RUN)/questions
	$(BIN)/kinspan prepare --input $(RERANK_TEXT) --output_dir $(RERANK_RUN)/corpus
	$(BIN)/kinspan study --study launch/recipes/reranker.yaml --data files=$(RERANK_RUN)/questions --where corpus=$(RERANK_RUN)/corpus --set train_data=files=$(RERANK_RUN)/mined $(RERANK_SET) --output_dir $(RERANK_RUN)/study
	$(BIN)/python benchmarks/search.py --index $(RERANK_RUN)/index --data $(RERANK_SOURCE) --questions $(RERANK_QUESTIONS) --cross_encoder $(RERANK_RUN)/study/files/*/seed-*/best > $(RERANK_RUN)/search.md
	cat $(RERANK_RUN)/search.md

# How many labels SSP saves, and with how many pairs: days of one core, in as many runs as one likes. DOSE_WORK holds
# start, corpus and trainings; results are lines in benchmarks/dose/lines. DOSE_FLAGS: --only 'rampart-gpu-*'.
DOSE_WORK ?= runs/dose

dose: $(INSTALLED)  ## Pre-train by several doses of SSP, fine-tune on few labels, and fill benchmarks/DOSE.md: days.
	$(BIN)/python benchmarks/dose/run.py --work $(DOSE_WORK) $(DOSE_FLAGS)
	$(BIN)/python benchmarks/dose/tables.py

format: $(INSTALLED)  ## Format the code, and mend what the linter can mend.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(INSTALLED)  ## Check style, formatting and types; .pre-commit-config.yaml has the same checks.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Data, objectives, metrics and the rules of the house: what imports no torch, without the corpora of real text.
FAST = tests/test_architecture.py tests/docs/test_pages.py tests/data_pipeline/sampling \
	tests/data_pipeline/prepare/test_encode.py tests/data_pipeline/prepare/test_readers.py tests/objectives \
	tests/finetune/data tests/finetune/evaluation
SLOWER = --ignore tests/objectives/test_adversarial.py --ignore tests/objectives/test_lengths.py \
	-k "not bert_corpus and not roberta_corpus"

test-fast: $(INSTALLED)  ## Run the tests of a minute, which suit every edit; add those of the module that you edit.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(FAST) $(SLOWER)

# Two at a time, each with one thread. What takes longest is listed, so that it can be made cheaper.
test: lint find-browser  ## Lint and run all tests but the slow ones.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 30 --durations-min 5

# Tests of the service's pages run in a browser, and are skipped where there is none: .ci/run installs it as root.
find-browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || \
		echo "no browser: tests of the service's pages are skipped; to run them: sudo apt-get install chromium"

test-slow: $(INSTALLED)  ## Run the tests that take minutes each.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist worksteal

# benchmarks/RESULTS.md says what CORPUS (of RoBERTa's tokens) and BERT_CORPUS are. The training steps take the
# longest: an hour.
bench: $(INSTALLED)  ## Measure the ratios of benchmarks/RESULTS.md.
	$(BIN)/python benchmarks/stream.py --corpus $(CORPUS)
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/train_step.py --corpus $(BERT_CORPUS) --roberta_corpus $(CORPUS)

# What `make gpu` needs on a machine without a package index, in the folder gpu-kit (37 MB), which git ignores.
ROBERTA_TOKENIZER ?= $(or $(wildcard ../shared/tokenizers/roberta-base-tokenizer),roberta-base)
gpu-kit: $(INSTALLED)  ## Pack wheels, text and configs for a GPU machine that has no package index.
	$(call require,AS2_TEXT,a .jsonl.xz file of documents)
	$(BIN)/python -m benchmarks.gpu.pack --input $(AS2_TEXT) --roberta_tokenizer $(ROBERTA_TOKENIZER)

# With the machine's own PyTorch and transformers, no virtual environment. GPU_FLAGS: --quick, or see --help.
gpu:  ## Check and measure on a GPU machine, in nine minutes; `make gpu-kit` comes before, on any machine.
	$(PYTHON) -m benchmarks.gpu $(GPU_FLAGS)

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
