"""Counts the sentences of a data set that stand in a pre-training corpus, by the overlap of n-grams of words.

Both sides are compared in lower case (Unicode NFKC) without punctuation, so that it does not matter how either was
tokenised ("5,000" or "5 , 000"). A sentence of 8 words or more stands in the corpus if 70% or more of its 8-grams of
words occur anywhere (Chowdhery et al., 2022, "PaLM", section 8). A shorter one is not judged: "He was born in London."
occurs without having leaked. ``kinspan prepare --decontaminate`` drops documents by the same rule.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from data_pipeline.core.progress import show_progress
from data_pipeline.corpus import Corpus
from data_pipeline.matching import THRESHOLD, make_sentences, split_words, undo_treebank
from data_pipeline.prepare.encode import normalise
from data_pipeline.tokenizers import load_tokenizer, serialize_backend
from finetune.data.answers import AnswerSet

PIECE_PARAGRAPHS = 2048  # paragraphs that are searched at a time: a few megabytes


def find_overlap(texts: Sequence[str], corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Returns which texts are long enough to be judged, and which stand in the corpus, ``[N]`` bool each.

    Memory grows with the texts, not with the corpus. The texts first go through the corpus's tokenizer, which may drop
    accents or characters, so that both sides have lost the same.
    """
    tokenizer = Tokenizer.from_str(serialize_backend(load_tokenizer(corpus.tokenizer_folder)))
    tidied = [normalise(undo_treebank(text)) for text in texts]
    encoded = tokenizer.encode_batch_fast(tidied, add_special_tokens=False)
    decoded = tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
    wanted = make_sentences([split_words(text) for text in decoded])
    grams = np.zeros(len(wanted.grams.sorted), dtype=bool)
    with show_progress("searching", "paragraphs", total=corpus.manifest.totals["paragraphs"]) as bar:
        for number, info in enumerate(corpus.manifest.shards):
            shard = corpus.shard(number)
            for start in range(0, info.paragraphs, PIECE_PARAGRAPHS):
                sentences = shard.paragraph_starts[start : start + PIECE_PARAGRAPHS + 1]
                starts = shard.sentence_starts[sentences].tolist()
                paragraphs = [shard.tokens[first:end].tolist() for first, end in pairwise(starts)]
                words = split_words("\n".join(tokenizer.decode_batch(paragraphs, skip_special_tokens=False)))
                grams[wanted.find_grams(words)[0]] = True
                bar.update(len(paragraphs))
    occurring, every = (
        np.bincount(wanted.row_of, weights=weights, minlength=len(texts)) for weights in (grams[wanted.gram_of], None)
    )
    return wanted.judged, wanted.judged & (occurring >= THRESHOLD * every)


def count_contamination(data: AnswerSet, corpus: Corpus) -> dict[str, int]:
    """Returns how many candidates, right answers, and questions with such an answer stand in the corpus."""
    judged, stands = find_overlap(data.answers.to_pylist(), corpus)
    right = data.labels == 1
    return {
        "judged_candidates": int(judged.sum()),
        "candidates": int(stands.sum()),
        "judged_answers": int((judged & right).sum()),
        "answers": int((stands & right).sum()),
        "all_questions": data.num_questions,
        "questions": len(np.unique(data.question_of[stands & right])),
    }
