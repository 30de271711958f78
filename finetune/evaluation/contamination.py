"""Counts the sentences of a data set that occur in a pre-training corpus, by the overlap of word n-grams.

A sentence of 8 words or more counts as contained if 70% or more of its word 8-grams occur anywhere; a shorter one is
not judged, see data_pipeline/matching.py. ``kinspan prepare --decontaminate`` drops documents by the same rule.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from data_pipeline.browse import load_decoder, show_document
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress
from data_pipeline.corpus import Corpus
from data_pipeline.matching import THRESHOLD, fold_words, make_sentences, split_words, undo_treebank
from data_pipeline.prepare.encode import normalise
from data_pipeline.tokenizers import load_tokenizer, serialize_backend
from finetune.data.answers import AnswerSet

PIECE_PARAGRAPHS = 2048  # paragraphs searched at a time, a few megabytes


def find_overlap(texts: Sequence[str], corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Returns which texts are long enough to be judged, and which occur in the corpus, ``[N]`` bool each.

    Memory grows with the texts, not with the corpus. The texts are first encoded and decoded by the corpus's tokenizer,
    which may drop accents or characters, so that both sides lose the same.
    """
    tokenizer = Tokenizer.from_str(serialize_backend(load_tokenizer(corpus.tokenizer_folder)))
    cleaned = [normalise(undo_treebank(text)) for text in texts]
    encoded = tokenizer.encode_batch_fast(cleaned, add_special_tokens=False)
    decoded = tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
    wanted = make_sentences([split_words(text) for text in decoded])
    grams = np.zeros(len(wanted.grams.sorted), dtype=bool)
    with show_progress("searching", "paragraphs", total=corpus.manifest.totals["paragraphs"]) as bar:
        for number, info in enumerate(corpus.manifest.shards):
            shard = corpus.shard(number)
            for start in range(0, info.paragraphs, PIECE_PARAGRAPHS):
                first_sentences = shard.paragraph_starts[start : start + PIECE_PARAGRAPHS + 1]
                starts = shard.sentence_starts[first_sentences].tolist()
                paragraphs = [shard.tokens[first:end].tolist() for first, end in pairwise(starts)]
                words = split_words("\n".join(tokenizer.decode_batch(paragraphs, skip_special_tokens=False)))
                grams[wanted.find_grams(words)[0]] = True
                bar.update(len(paragraphs))
    num_found, num_grams = (
        np.bincount(wanted.row_of, weights=weights, minlength=len(texts)) for weights in (grams[wanted.gram_of], None)
    )
    return wanted.is_long_enough, wanted.is_long_enough & (num_found >= THRESHOLD * num_grams)


def count_contamination(data: AnswerSet, corpus: Corpus) -> dict[str, int]:
    """Returns how many candidates, right answers, and questions with such an answer occur in the corpus."""
    judged, contained = find_overlap(data.answers.to_pylist(), corpus)
    right = data.labels == 1
    return {
        "judged_candidates": int(judged.sum()),
        "candidates": int(contained.sum()),
        "judged_answers": int((judged & right).sum()),
        "answers": int((contained & right).sum()),
        "all_questions": data.num_questions,
        "questions": len(np.unique(data.question_of[contained & right])),
    }


def check_left_out(texts: Sequence[str], corpus: Corpus, flag: str) -> None:
    """Raises KinspanError if a paragraph, an answer or an id in the corpus equals a text that was to be left out.

    The texts are first encoded and decoded as in ``find_overlap``. One with an unknown token would equal others, and is
    not looked for.
    """
    decoder = load_decoder(corpus.folder)
    encoded = decoder.encode_batch([normalise(text) for text in texts], add_special_tokens=False)
    decoded = decoder.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
    wanted = {words for words in map(fold_words, decoded) if words and "unk" not in words.split()}
    for number in show_progress("looking for answers", "shards", range(len(corpus.manifest.shards) if wanted else 0)):
        shard = corpus.shard(number)
        for document in (show_document(shard, row, decoder) for row in range(len(shard.held_out))):
            if not wanted.isdisjoint(map(fold_words, [document.id, *document.paragraphs, *document.answers])):
                raise KinspanError(f"{flag}: {corpus.folder} still has an answer, in {document.id}: delete the folder")
