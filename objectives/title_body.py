"""Title and body: is B the body of the question whose title is A?

Rücklé et al., 2020, "MultiCQA", section 3.1, where it is WS-TB: weak supervision by titles and bodies. An anchor is a
question that has a title and a body, and makes two pairs:

- A is its title, the same in both pairs;
- the positive's B is its body;
- the easy negative's B is the body of another question of the forum, drawn uniformly, and anew in every epoch.

No labels are needed. Negatives come from the anchor's own corpus, so give each forum as a corpus (``--corpus beer
cooking``). Any text with titles works: news, tickets, a help desk.
"""

from functools import partial

from data_pipeline.corpus import Shard
from data_pipeline.sampling.texts import find_bodies, find_equal, find_titles

from .forums import make_forum_objective, sample_questions, view_questions

TITLE, BODY = 0, 1  # indices of the view's texts


def view(shard: Shard) -> Shard:
    """Returns a view of the questions that have a title and a body that differs from it."""
    titles, bodies = find_titles(shard), find_bodies(shard)
    return view_questions(shard, titles, bodies.drop(find_equal(titles, bodies)))


TITLE_BODY = make_forum_objective(
    name="title_body",
    needs="a question or another document with a title and a body",
    view=view,
    column="title_tokens",
    remedy="prepare a forum's dump, or documents that have titles with --title_texts",
    sample=partial(sample_questions, a=(TITLE,), b=(BODY,)),
    asks="whether B is the body of the question with the title A",
    negatives="the body of another question of the same corpus, drawn uniformly",
)
