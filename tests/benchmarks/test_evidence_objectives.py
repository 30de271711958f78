"""The controls for SSP in the studies: negatives of one kind."""

import pytest

from benchmarks.evidence.objectives import SSP_EASY, SSP_HARD
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.pairs import EASY, HARD
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from tests.synthetic import short_tokenizer


@pytest.mark.parametrize(("objective", "other"), [(SSP_EASY, HARD), (SSP_HARD, EASY)], ids=["easy", "hard"])
def test_negatives_of_one_kind(objective, other, tiny_corpus):
    """Documents of four paragraphs or more: none of the other kind but where a document has too few that suit."""
    tokenizer = load_tokenizer(short_tokenizer())
    name = f"benchmarks.evidence.objectives:{'SSP_EASY' if objective is SSP_EASY else 'SSP_HARD'}"
    stream = PairStream(
        parse_mixture(name, "matched").read_from(Corpus(tiny_corpus)),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=64,
        masking=MaskedLM(tokenizer.mask_token_id, len(tokenizer), 0.15, None),
    )
    kinds = stream.batch(0, 500).kinds
    share = (kinds == other).mean()
    assert share == 0 if other == HARD else share < 0.25
    assert (kinds == 0).mean() == pytest.approx(0.2)
