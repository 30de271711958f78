"""A corpus that still holds an answer which a pre-training must not see is refused."""

from contextlib import nullcontext

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from finetune.evaluation.contamination import check_left_out
from tests.synthetic import short_tokenizer

FIRST = [
    "The Eiffel Tower was erected in 1889 as the entrance arch to the World's Fair. It cost 5,000 francs (about $100)!",
    'He said: "We don\'t know how many of the café tables were sold in São Paulo that year." Nobody had counted them.',
]


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        (FIRST[1].upper(), True),
        ("We don't know how many of the café tables were sold in São Paulo", False),  # a part, for the n-grams
        ("Sans café?", True),
        ("café", False),
        ("\u0bf5 \u0bf5", False),  # unknown to the tokenizer
    ],
)
def test_a_text_that_was_to_be_left_out_is_refused(text, stands, tmp_path, helpers):
    lines = [{"id": "t1", "title": "?", "paragraphs": FIRST[1:], "answers": ["No.", "sans CAFE"]}]
    lines += [{"id": f"t{n}", "title": "?", "text": f"Case {n} \u0bf5"} for n in range(2, 9)]
    source = f"questions:{helpers.write_jsonl(tmp_path / 'desk.jsonl', lines)}"
    helpers.prepare([source], short_tokenizer(), tmp_path / "corpus")
    with pytest.raises(KinspanError, match="--questions") if stands else nullcontext():
        check_left_out(["Nothing.", text], Corpus(tmp_path / "corpus"), "--questions")
