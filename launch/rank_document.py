"""Ranks the sentences of a held-out document for one of them, with a release as a CrossEncoder."""

import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from launch._cli import parse, run
from pretrain.evaluation.document_ranking import find_questions, load_cross_encoder, mean_auc, rank_sentences
from pretrain.modeling.default_model import default_model
from pretrain.planning.defaults import default_corpus
from pretrain.runtime.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, setting

DESCRIPTION = """Ranks the sentences of one held-out document for a sentence taken from it.

The release is loaded with sentence-transformers alone. A good one puts the sentences of the paragraph that the
sentence was taken from first; they are marked with *."""

EPILOG = """examples:
  python launch/rank_document.py --model runs/quickstart/release
  python launch/rank_document.py --model releases/docs --corpus corpora/docs --document 3"""

SHOWN = 8  # sentences


@dataclass
class RankConfig:
    """Flags of this entry."""

    model: str = setting(REQUIRED, "A release: a folder that launch/release.py wrote.", old_name="release")
    corpus: str | None = setting(None, "Corpus folder. Without it: the documentation that comes with Python.")
    average_over: int = setting(30, "Number of documents that the closing figure is averaged over.", within=ABOVE_0)
    document: int = setting(0, "Which of the suitable held-out documents, counted from 0.", within=NOT_BELOW_0)


def main() -> None:
    config = parse(RankConfig, DESCRIPTION, EPILOG)
    if not (Path(config.model) / "config.json").is_file():
        raise KinspanError(f"--model {config.model} is no release: make one with launch/release.py")
    corpus = Corpus(config.corpus or default_corpus(tokenizers.load_tokenizer(default_model())))
    questions = find_questions(corpus, tokenizers.load_tokenizer(str(corpus.folder / "tokenizer")))
    if config.document >= len(questions):
        raise KinspanError(f"--document {config.document}: the corpus has {len(questions)} suitable held-out documents")
    question, encoder = questions[config.document], load_cross_encoder(config.model)
    print(f"\nheld-out document: {question.title}\nsentence: {question.sentence}\n")
    for place, (score, same, text) in enumerate(rank_sentences(encoder, question)[:SHOWN], 1):
        print(f"{place:2d}. {'*' if same else ' '} {score:.3f}  {text[:150]}")
    print(f"\n* from the same paragraph ({sum(question.same_paragraph)} of {len(question.candidates)} candidates)")
    asked = questions[: config.average_over]
    print(
        f"over {len(asked)} such documents, a sentence of the same paragraph is ranked above another one in "
        f"{100 * mean_auc(encoder, asked):.0f}% of cases (by chance 50%)"
    )


if __name__ == "__main__":
    run(main)
