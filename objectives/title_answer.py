"""Title and accepted answer: does B answer the question whose title is A?

Rücklé et al., 2020, "MultiCQA", section 5.1 ("extended data"). An anchor is a question with an accepted answer, and
makes two pairs:

- A is its title, the same in both pairs; in ``question_answer`` it is title and body of a question that has both;
- the positive's B is its accepted answer;
- the easy negative's B is the accepted answer of another question of the forum, drawn uniformly.
"""

from dataclasses import replace
from functools import partial

from data_pipeline.corpus import Shard
from data_pipeline.sampling.texts import find_accepted_answers, find_bodies, find_titles

from .forums import make_forum_objective, sample_questions, view_questions

TITLE, ANSWER = 0, 1  # indices of the view's texts, without bodies
QUESTION, ANSWER_TO_QUESTION = (0, 1), (2,)  # with bodies: title and body, answer


def view(shard: Shard, with_body: bool = False) -> Shard:
    """Returns a view of the questions that have a title, an accepted answer and, if ``with_body``, a body."""
    bodies = [find_bodies(shard)] if with_body else []
    return view_questions(shard, find_titles(shard), *bodies, find_accepted_answers(shard))


TITLE_ANSWER = make_forum_objective(
    name="title_answer",
    needs="a question with a title and an accepted answer",
    view=view,
    column="answers",
    remedy='prepare a forum\'s Posts.xml, or questions:FILE.jsonl with "answers" and "accepted"',
    sample=partial(sample_questions, a=(TITLE,), b=(ANSWER,)),
    asks="whether B is the accepted answer to the question with the title A",
    negatives="the accepted answer to another question of the same corpus, drawn uniformly",
)
QUESTION_ANSWER = replace(
    TITLE_ANSWER,
    name="question_answer",
    needs="a question with a title, a body and an accepted answer",
    view=partial(view, with_body=True),
    sample=partial(sample_questions, a=QUESTION, b=ANSWER_TO_QUESTION),
    asks="whether B is the accepted answer to the question A, title and body",
)
