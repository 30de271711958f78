"""Fine-tunes a ranker for answer sentence selection, with several seeds; TANDA with --transfer."""

import logging
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent  # kept off the path, where launch/pretrain.py would hide pretrain/
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import list_unused
from finetune.data.registry import expect_data, parse_columns
from finetune.training.config import DEFAULT_DEEPSPEED_CONFIG, FinetuneConfig, check
from launch.kinspan import run
from pretrain.engine.deepspeed_config import read_deepspeed_config

log = logging.getLogger(__name__)

DESCRIPTION = """Fine-tunes a checkpoint to rank candidate answers, with several seeds, and measures each on the test
set: MAP, MRR, P@1 and nDCG@10 as trec_eval computes them, mean and standard deviation, beside BM25 and the base model.

The ranker is a sequence classifier with one logit. Each seed stops early by the dev MAP and keeps its best checkpoint
in OUTPUT_DIR/seed-N/best, which CrossEncoder and AutoModelForSequenceClassification load, with run.txt, qrels.txt and
predictions.jsonl beside it. --transfer trains on another data set first (TANDA). --loss contrastive trains a
bi-encoder, which SentenceTransformer loads, and measures MRR and recall. Run the same command again to resume.

--data files=questions reads questions/train.jsonl, dev.jsonl and test.jsonl, with a line for each candidate:
  {"question": "How long does a refund take?", "answer": "Refunds arrive within five days.", "label": 1}

For 50 questions add --learning_rate 1e-4 --negatives_ratio 3 --epochs 100 --eval_steps 20 --patience 6: with about ten
candidates each, all-MiniLM-L6-v2 then takes 7 to 19 minutes for a seed on one core."""

EPILOG = """examples:
  kinspan finetune --data files=questions --model releases/docs --output_dir runs/ranker --seeds 3
  deepspeed launch/finetune.py --data wikiqa=WikiQACorpus --model roberta-base --search_folds 5
  kinspan finetune --data wikiqa=WikiQACorpus --transfer asnq=ASNQ --learning_rate 1e-6 --epochs 3
  kinspan finetune --data files=my_questions --columns question=query,answer=passage,label=relevant
  kinspan finetune --loss contrastive --data techqa=technicalqa --own_negatives 2 --output_dir runs/finder"""


def main() -> str:
    config = parse(FinetuneConfig, DESCRIPTION, EPILOG)
    check(config)
    expect_data(config.data, config.train_data, config.transfer)
    parse_columns(config.columns), read_deepspeed_config(config.deepspeed_config or DEFAULT_DEEPSPEED_CONFIG)
    for note in list_unused(config):
        log.warning(note)
    from finetune.training.experiment import format_results, run_experiment  # after the flags: torch takes seconds

    return format_results(run_experiment(config))


if __name__ == "__main__":
    run(main)
