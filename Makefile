PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
RUN = runs/quickstart
GPUS = $(shell nvidia-smi -L 2>/dev/null | wc -l)
RANKS ?= $(if $(filter 0,$(GPUS)),2,$(GPUS))

.PHONY: quickstart as2 as2-noise test test-slow lint bench

# A marker, so that only a change of what is installed installs again.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	touch $@

# Two ranks (or one a GPU), ZeRO-2, all-MiniLM-L6-v2 on the documentation that comes with Python.
quickstart: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" deepspeed --num_accelerators $(RANKS) launch/pretrain.py --config launch/recipes/quickstart.yaml --output_dir $(RUN)
	$(BIN)/python launch/release.py --run_dir $(RUN) --output_dir $(RUN)/release
	$(BIN)/python launch/rank_document.py --model $(RUN)/release
	@echo
	@echo "curves:   $(BIN)/tensorboard --logdir $(RUN)/tensorboard"
	@echo "summary:  $(RUN)/summary.json"
	@echo "release:  $(RUN)/release  (model card: $(RUN)/release/README.md)"

# Does SSP help ranking? Wikipedia -> corpus -> SSP, and MLM alone -> fine-tuning on WikiQA and TREC-QA -> table.
AS2_TEXT ?= ../shared/data/corpus/enwiki2015_AA.jsonl.xz
AS2_DATA ?= wikiqa=../shared/data/as2/wikiqa trecqa=../shared/data/as2/trecqa
AS2_MODEL ?= $(wildcard ../shared/models/all-MiniLM-L6-v2-fp16)
AS2_FLAGS = $(if $(AS2_MODEL),--model $(AS2_MODEL))
AS2_TOKENIZER = $(or $(AS2_MODEL),$(shell $(BIN)/python -c 'from pretrain.defaults import default_model as m; print(m())'))

as2: $(INSTALLED)
	$(BIN)/python launch/prepare.py --input $(AS2_TEXT) --tokenizer $(AS2_TOKENIZER) --output_dir corpora/as2
	for loss in ssp mlm; do \
		$(BIN)/python launch/pretrain.py --config launch/recipes/as2-$$loss.yaml --corpus corpora/as2 $(AS2_FLAGS) --output_dir runs/as2/$$loss && \
		$(BIN)/python launch/release.py --run_dir runs/as2/$$loss --output_dir runs/as2/$$loss/release || exit; \
	done
	$(BIN)/python launch/study.py --study launch/recipes/as2.yaml --data $(AS2_DATA) --output_dir runs/as2/study $(AS2_FLAGS)

# What flipped labels cost, fine-tuned and with TANDA.
as2-noise: $(INSTALLED)
	$(BIN)/python launch/study.py --study launch/recipes/as2-noise.yaml --data $(firstword $(AS2_DATA)) --transfer $(lastword $(AS2_DATA)) --output_dir runs/as2/noise $(AS2_FLAGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two at a time, each with one thread.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist worksteal

# The figures of benchmarks/RESULTS.md; CORPUS, BERT_CORPUS and WIKIQA are as it says.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/stream.py --corpus $(CORPUS)
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/train_step.py --corpus $(BERT_CORPUS)
	$(BIN)/python benchmarks/rank.py --data wikiqa=$(WIKIQA)
	$(BIN)/python benchmarks/checkpoint.py --corpus $(BERT_CORPUS)
	$(BIN)/python benchmarks/gpu.py --corpus $(CORPUS) --quick
