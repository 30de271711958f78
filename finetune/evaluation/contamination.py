"""Checks that the answers which a pre-training must not see are not in its corpus."""

from collections.abc import Sequence

from data_pipeline.browse import load_decoder, show_document
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress
from data_pipeline.corpus import Corpus
from data_pipeline.matching import fold_words
from data_pipeline.prepare.encode import normalise


def check_left_out(texts: Sequence[str], corpus: Corpus, flag: str) -> None:
    """Raises KinspanError if a paragraph, an answer or an id in the corpus equals a text that was to be left out.

    The texts are first encoded and decoded by the corpus's tokenizer, so that both sides lose the same. One with an
    unknown token would equal others, and is not looked for.
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
