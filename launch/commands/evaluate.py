"""Measures rankings of candidate answers: MAP, MRR, P@1 and nDCG@10 of models, or of any system's TREC files."""

from collections.abc import Iterator

from data_pipeline.core.command_line import parse
from finetune.data.passages import load_passage_questions
from finetune.data.registry import SPECS, expect_data, parse_columns
from finetune.evaluation.config import EvaluateConfig, check
from finetune.evaluation.metrics import METRICS
from finetune.evaluation.named_metrics import parse_metrics
from serve.answers import read_paragraphs

DESCRIPTION = """Measures rankings of candidate answers: MAP, MRR, P@1 and nDCG@10, equal to trec_eval's.

--run and --qrels score TREC files of any system: lines of `question Q0 candidate rank score tag` and of
`question 0 candidate relevance`; the rank is ignored, and ties are broken by id. --model and --data score models on a
data set, beside BM25: a sequence classifier, a bi-encoder of sentence-transformers, or a fusion. Each further one is
compared with the first by a paired randomisation test over questions.

--documents and --data measure models by searching all paragraphs of documents: MRR@10, R@10 and MAP. Bi-encoders rank
all paragraphs; cross-encoders and fusions re-rank what BM25 and the first bi-encoder find.
"""

EPILOG = f"""examples:
  kinspan evaluate --run run.txt --qrels qrels.txt --metrics "MRR@10 P@5 R@100"
  kinspan evaluate --run ours.txt theirs.txt --qrels qrels.txt
  kinspan evaluate --model runs/wikiqa/seed-1/best --data wikiqa=data/WikiQACorpus
  kinspan evaluate --model runs/ssp runs/base --data trecqa=data/trecqa --split dev --output_dir compared
  kinspan evaluate --documents docs/ --data files=questions.jsonl --model runs/ranker/seed-1/best

In --output_dir each model gets a folder of its name with run.txt, qrels.txt and predictions.jsonl, and
per_question.csv has the metrics of every question.

{SPECS}"""


def main() -> Iterator[str]:
    config = parse(EvaluateConfig, DESCRIPTION, EPILOG)
    mode, metrics = check(config), parse_metrics(config.metrics) or METRICS
    expect_data(config.data)
    from finetune.ranking import measure  # torch takes seconds to import

    if mode == "run":
        return measure.measure_files(config, metrics)
    if mode == "documents":
        questions, documents = load_passage_questions(str(config.data), config.split, parse_columns(config.columns))
        return measure.measure_search(config, questions, documents, read_paragraphs(config.documents))
    return measure.measure_models(config, metrics)
