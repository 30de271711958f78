"""What ``kinspan data mine`` does: a model finds hard negatives of questions among the right answers of others.

Nothing else is a candidate. Where questions share one pool of answers, a text that is right for a dev or test question
alone would be seen as wrong time and again and never as right, and a ranker would learn that it is no answer, whatever
is asked.

A candidate that the model ranks high is a hard negative, or an answer that nobody labelled. So what scores nearly as
high as the right answer is left out: above a share of its score, by default .95 (Moreira et al., 2024, "NV-Retriever:
Improving text embedding models with effective hard-negative mining", section 3.1, "TopK-PercPos").
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet, Distinct
from finetune.data.dataset import find_files
from finetune.data.filters import NO_ALL_NEGATIVE, describe_left_out, filter_questions
from finetune.data.registry import load_split, parse_columns
from finetune.data.tables import FORMATS
from finetune.ranking.best import take_best
from finetune.ranking.bi_encoder import ANSWER, QUERY, check_room, is_bi_encoder
from finetune.ranking.embedder import Embedder
from finetune.ranking.encode import CutCounter
from finetune.ranking.score import check_finite, load_scoring
from pretrain.modeling.default_model import name_installed

TRAIN, FACTS = "train.jsonl", "mined.json"
MOST_COSINES = 1 << 27  # of questions to all candidates, in memory at once: half a gigabyte


@dataclass(frozen=True)
class MiningRules:
    """What becomes a negative.

    negatives:      the most of each question
    depth:          so many candidates that the bi-encoder ranks first are scored by a cross-encoder, where there is one
    skip:           so many of those that rank first are left out
    positive_share: left out are those above this share of the lowest score of the question's right answers
    """

    negatives: int = 8
    depth: int = 100
    skip: int = 0
    positive_share: float = 0.95


@dataclass(frozen=True)
class Mined:
    """Negatives of each of Q questions.

    chosen:  for each question rows of its negatives, the hardest first
    scores:  of these
    lowest:  ``[Q]`` the lowest score of a question's right answers
    dropped: how many candidates were too near to a right answer
    """

    chosen: list[np.ndarray]
    scores: list[np.ndarray]
    lowest: np.ndarray
    dropped: int


def mine_file(
    spec: str,
    output: Path,
    model: str,
    cross_encoder: str | None = None,
    rules: MiningRules = MiningRules(),
    *,
    max_length: int = 128,
    show: int = 5,
    columns: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Mines, writes the data set and says what was found. Raises KinspanError for what the user can mend.

    spec:          the data set whose training questions are mined for, such as wikiqa=FOLDER
    model:         the bi-encoder that looks for candidates
    cross_encoder: what scores them in its place
    show:          so many questions are printed with their negatives
    """
    there = find_files(output, [f"train{suffix}" for suffix in FORMATS])
    if there and not (output / FACTS).exists():
        raise KinspanError(f"--output_dir {output} holds a {there[0].name} that was not mined: choose another folder")
    names = parse_columns(columns)
    whole, notes = load_split(spec, "train", names)
    notes += describe_left_out(whole, NO_ALL_NEGATIVE)
    data = filter_questions(whole, NO_ALL_NEGATIVE)
    data = data.keep(data.labels == 1)
    make_folder(output)
    corpus = data.distinct
    say("\n".join([*notes, f"{data.num_questions:,} questions, {len(corpus.rows):,} distinct right answers"]))
    asked, found = embed(data, corpus, model, max_length, say)
    cut = CutCounter()
    rank = load_reranker(cross_encoder, max_length, say, cut) if cross_encoder else None
    mined = mine(data, corpus, asked, found, rules, rank)
    for line in cut.describe(shorten_name(cross_encoder), max_length) if cross_encoder else []:
        say(line)
    sizes = np.array([len(rows) for rows in mined.chosen])
    facts = {
        "data": data.name,
        "model": shorten_name(name_installed(model)),
        "cross_encoder": cross_encoder and shorten_name(cross_encoder),
        **asdict(rules),
        "questions": data.num_questions,
        "mined": int(sizes.sum()),
        "too_near": mined.dropped,
        "without_negatives": int((sizes == 0).sum()),
    }
    write_atomically(output / FACTS, json.dumps(facts, indent=1) + "\n")  # first: it lets a killed command begin again
    write_mined(output / TRAIN, data, mined, names or {})
    say("\n".join(describe_mined(data, mined, show)))
    say(
        f"{sizes.sum():,} negatives of {data.num_questions:,} questions ({(sizes == 0).sum():,} have none); "
        f"{mined.dropped:,} candidates scored above {rules.positive_share:g} of a right answer's score and were left "
        f"out\n{output / TRAIN}: train on it with --data {quote(spec)} --train_data {quote(f'files={output}')}"
    )


def embed(
    data: AnswerSet, corpus: Distinct, model: str, max_length: int, say: Callable[[str], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the questions ``[Q, hidden]`` and of the distinct candidates ``[D, hidden]``; ``say`` is told how many
    texts are cut."""
    if not is_bi_encoder(model):
        raise KinspanError(
            f"--model {model} reads question and answer together: give it as --cross_encoder, and a bi-encoder here"
        )
    embedder = Embedder(model)
    check_room(embedder.model, max_length)
    if max_length > embedder.max_length:
        say(f"{embedder.name}: texts are cut at {embedder.max_length} tokens, its most, and not at {max_length}")
    embedder.max_length = embedder.model.max_seq_length = min(max_length, embedder.max_length)
    answers = data.answers.take(pa.array(corpus.rows)).to_pylist()
    for what, texts, prompts in (("questions", data.questions, QUERY), ("answers", answers, ANSWER)):
        if cut := embedder.count_cut(texts, prompts):
            say(f"{embedder.name}: {cut:,} of {len(texts):,} {what} cut (--max_length {embedder.max_length})")
    return embedder.embed_queries(data.questions), embedder.embed_answers(answers)


def load_reranker(
    model: str, max_length: int, say: Callable[[str], None], cut: CutCounter
) -> Callable[[AnswerSet], np.ndarray]:
    """What gives the probability of each row of an AnswerSet. Raises KinspanError for a bi-encoder, and where a score
    is not finite.

    say: told where ``max_length`` is not the model's own
    cut: counts the pairs that are cut
    """
    if is_bi_encoder(model):
        raise KinspanError(f"--cross_encoder {model} embeds each text alone: give it as --model")
    score, _ = load_scoring(model, max_length, say=say, see=cut.count)

    def rank(data: AnswerSet) -> np.ndarray:
        scores = score(data)
        check_finite(scores, f"--cross_encoder {model}", data)
        return 1 / (1 + np.exp(-scores))

    return rank


def mine(
    data: AnswerSet,
    corpus: Distinct,
    asked: np.ndarray,
    found: np.ndarray,
    rules: MiningRules,
    rank: Callable[[AnswerSet], np.ndarray] | None = None,
) -> Mined:
    """The hardest candidates of each question that are no answers of it.

    data:         questions with their right answers alone
    asked, found: vectors of questions and of distinct candidates
    rank:         scores rows by a cross-encoder, in place of the vectors
    """
    chosen, scores, lowest, dropped = [], [], np.zeros(data.num_questions), 0
    bar = show_progress("mining", "questions", total=data.num_questions)
    chunk = max(1, MOST_COSINES // len(found))
    for first in range(0, data.num_questions, chunk):
        cosines = asked[first : first + chunk] @ found.T
        for question, own in enumerate(cosines, first):
            bar.update()
            right = corpus.find_right(question)
            top = take_best(own, rules.depth + len(right) if rank else len(own))
            top = top[~np.isin(top, right)]
            if rank:
                top = top[: rules.depth]
                probabilities = rank(_list_candidates(data, question, corpus.rows[np.concatenate([right, top])]))
                of_right, of_top = probabilities[: len(right)], probabilities[len(right) :]
                order = np.argsort(-of_top, kind="stable")
                top, of_top = top[order], of_top[order]
            else:
                of_right, of_top = own[right], own[top]
            lowest[question] = of_right.min()
            kept = find_far(of_top, float(lowest[question]), rules.positive_share)
            dropped += int((~kept).sum())
            far = np.flatnonzero(kept)
            far = far[far >= rules.skip][: rules.negatives]
            chosen.append(corpus.rows[top[far]])
            scores.append(of_top[far])
    bar.close()
    return Mined(chosen, scores, lowest, dropped)


def find_far(scores: np.ndarray, positive: float, share: float) -> np.ndarray:
    """Which candidates score at most ``share`` of a right answer's score, bools.

    Of a right answer whose cosine is negative, the bound lies as far below it, in proportion.
    """
    return scores <= positive - (1 - share) * abs(positive)


def _list_candidates(data: AnswerSet, question: int, rows: np.ndarray) -> AnswerSet:
    """One question with the candidates of these rows."""
    one = data.take(np.array([question]))
    names = pa.array([str(number) for number in range(len(rows))], pa.large_string())
    return replace(
        one,
        starts=np.array([0, len(rows)]),
        answer_ids=names,
        answers=data.answers.take(pa.array(rows)),
        labels=np.zeros(len(rows), dtype=np.int8),
        grades=None,
    )


def write_mined(path: Path, data: AnswerSet, mined: Mined, names: Mapping[str, str]) -> None:
    """Writes each question's right answers and mined negatives as the split train of files=.

    names: of columns, where they are others than usual: so one --columns does for the data and what was mined of it
    """

    def name(fields: dict[str, Any]) -> dict[str, Any]:
        return {names.get(field, field): value for field, value in fields.items()}

    def list_lines() -> Any:
        for question, own in enumerate(data.rows()):
            right = np.arange(own.start, own.stop)
            head = {"question_id": data.question_ids[question], "question": data.questions[question]}
            rows = np.sort(np.concatenate([right, mined.chosen[question]]))  # so that the order tells no label
            for row, text in zip(rows.tolist(), data.answers.take(pa.array(rows)).to_pylist(), strict=True):
                label = int(own.start <= row < own.stop)
                line = name({**head, "answer_id": f"c{row}", "answer": text, "label": label})
                yield json.dumps(line, ensure_ascii=False) + "\n"

    write_atomically(path, list_lines())


def describe_mined(data: AnswerSet, mined: Mined, count: int) -> list[str]:
    """Questions spread over the data, each with its first right answer, the lowest score of all of them, and its
    negatives, to be read."""
    lines, every = [], list(data.rows())
    for question in np.linspace(0, data.num_questions - 1, min(count, data.num_questions)).astype(int):
        right = data.answers[every[question].start].as_py()
        lines += [f"\n{_shorten(data.questions[question])}", f"  right {mined.lowest[question]:.3f}  {_shorten(right)}"]
        for row, score in zip(mined.chosen[question].tolist(), mined.scores[question], strict=True):
            lines.append(f"  wrong {score:.3f}  {_shorten(data.answers[row].as_py())}")
    return lines


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
