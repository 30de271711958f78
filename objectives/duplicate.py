"""Duplicates: is A asked again in B, as the people of a forum found?

Rücklé et al., 2020, "MultiCQA", section 5.1 ("extended data"). An anchor is a question that was closed as a duplicate
of another one, and makes two pairs:

- A is its title, the same in both pairs; with ``duplicate_question`` it is title and body;
- the positive's B is the body of the question that it is a duplicate of; with ``duplicate_question``, title and body;
- the easy negative's B is the same text of another question that has a duplicate. So neither the kind of question
  that is often asked again nor its length gives the label away. A question that links connect with the anchor,
  directly or through others, is no negative.

A question and those that it duplicates are in one shard and split: data_pipeline/prepare puts them there. Of several
links, the first one counts whose question is in the shard.
"""

from dataclasses import replace
from functools import partial

from data_pipeline.corpus import Shard
from data_pipeline.sampling.texts import find_bodies, find_linked, find_titles

from .forums import make_forum_objective, sample_questions, view_questions

TITLE, BODY, OTHER_TITLE, OTHER_BODY = range(4)  # indices of the view's texts


def view(shard: Shard) -> Shard:
    """Returns a view of the questions that duplicate another one in the shard."""
    titles, bodies, linked = find_titles(shard), find_bodies(shard), find_linked(shard)
    return view_questions(shard, titles, bodies, titles.take(linked), bodies.take(linked))


DUPLICATE = make_forum_objective(
    name="duplicate",
    needs="a question that is a duplicate of another one in the corpus",
    view=view,
    column="links",
    remedy='prepare the forum\'s Posts.xml with its PostLinks.xml beside it, or questions:FILE.jsonl with "links"',
    sample=partial(sample_questions, a=(TITLE,), b=(OTHER_BODY,), skip_duplicates=True),
    asks="whether the question with the title A is a duplicate of the one with the body B",
    negatives="the body of another question that has duplicates, drawn uniformly",
)
DUPLICATE_QUESTION = replace(
    DUPLICATE,
    name="duplicate_question",
    sample=partial(sample_questions, a=(TITLE, BODY), b=(OTHER_TITLE, OTHER_BODY), skip_duplicates=True),
    asks="whether the question A, title and body, is a duplicate of the question B",
    negatives="title and body of another question that has duplicates, drawn uniformly",
)
