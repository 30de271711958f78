"""Title and first sentence: is B the first sentence of the document whose title is A?

Any titled text serves, without labels. The pairs are made as those of title_body (Rücklé et al., 2020, "MultiCQA",
section 3.1), but with a sentence, which is as long as an answer. An anchor is a document that has a title and a
sentence, and makes two pairs:

- A is its title, the same in both pairs;
- the positive's B is its first sentence;
- the easy negative's B is the first sentence of another document, drawn uniformly, and anew in every epoch.
"""

from dataclasses import replace

from data_pipeline.corpus import Shard
from data_pipeline.sampling.texts import TextColumn, find_bodies, find_equal, find_titles

from .forums import RUECKLE, view_questions
from .title_body import TITLE_BODY


def view(shard: Shard) -> Shard:
    """Returns a view of the documents with a title and a first sentence that differs from it."""
    titles, bodies = find_titles(shard), find_bodies(shard)
    first = shard.paragraph_starts[shard.document_starts[:-1]]  # [D] first sentences; past the last one for no text
    end = shard.sentence_starts[(first + 1).clip(max=len(shard.sentence_starts) - 1)]
    sentences = TextColumn(bodies.start, end.clip(max=bodies.end), bodies.values)
    return view_questions(shard, titles, sentences.drop(find_equal(titles, sentences)))


TITLE_SENTENCE = replace(
    TITLE_BODY,
    name="title_sentence",
    view=view,
    needs="a question or another document with a title and a sentence",
    asks="whether B is the first sentence of the document with the title A",
    negatives="the first sentence of another document of the same corpus, drawn uniformly",
    source=f"{RUECKLE}, with a document's first sentence in place of a question's body",
)
