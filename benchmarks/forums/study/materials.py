"""What the study reads: a corpus of each forum without the held-out questions, and targets drawn from these."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from benchmarks.evidence.results import Store, pack_figures
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from data_pipeline.prepare.cleaning import Rules
from data_pipeline.prepare.pipeline import prepare
from finetune.data.answers import AnswerSet
from finetune.data.builders.forum import build_forum_set, read_questions
from finetune.data.builders.pools import build_pools
from finetune.data.dataset import find_files
from finetune.data.insuranceqa import ANSWERS
from finetune.data.tables import read_lines
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.metrics import MAP, MRR, compute_question_metrics
from finetune.transfer import domains
from finetune.transfer.matrix import TF_IDF, Target, load_targets, score_tf_idf
from objectives import OBJECTIVES
from pretrain.modeling.default_model import default_model
from pretrain.release.folder import fingerprint_model

from .recipe import FUSION, INSURANCEQA, KINDS, MULTI, WIKIQA, Recipe

NAME = "materials"  # of the file of results
SIMILARITY = "similarity"  # likewise


@dataclass(frozen=True)
class Places:
    """Folders: of work; of the release that start (a) is made of; of the dumps, one folder a forum; of the data sets.

    starts: the folder of each start by its name
    """

    work: Path
    release: Path
    dumps: Path
    wikiqa: Path
    insuranceqa: Path
    starts: dict[str, str]

    def name_corpus(self, forum: str) -> Path:
        """The corpus of a forum."""
        return self.work / "corpora" / forum


def make_materials(recipe: Recipe, places: Places) -> list[Target]:
    """Makes start (a), corpora and targets that are not there yet, and returns the targets."""
    drop_pair_head(places.release, Path(places.starts["a"]))
    for forum in recipe.all_forums:
        rules = Rules(validation_share=recipe.content["held_out"])
        dump, folder = [str(places.dumps / forum)], places.name_corpus(forum)
        prepare(dump, default_model(), folder, OBJECTIVES, rules, quiet=True)
    told, specs = recipe.content["targets"], {}
    for name in recipe.targets:
        folder = places.work / "targets" / name
        specs[name] = f"files={folder}"
        if name == INSURANCEQA:
            specs[name] = f"insuranceqa={_sample_insuranceqa(places, folder, told['insuranceqa_every'])}"
        elif name == WIKIQA:
            specs[name] = f"wikiqa={places.wikiqa}"
        elif not (folder / "test.jsonl").exists():
            forum, _, kind = name.partition("/")
            shares = {"dev": 0.0, "test": recipe.content["held_out"]}
            build_forum_set(read_questions([str(places.dumps / forum)]), kind, folder, shares, told["candidates"])
    of_forums = {name: spec for name, spec in specs.items() if "/" in name}
    accuracy = {name for name in of_forums if name.endswith(KINDS[1])}
    others = {name: spec for name, spec in specs.items() if name not in of_forums}
    return [*load_targets(of_forums, "test", accuracy, told["questions"]), *load_targets(others, "test", set())]


def drop_pair_head(release: Path, folder: Path) -> None:
    """Copies a release without what was never trained in it, so that every seed draws a pair head of its own."""
    if folder.exists():
        return
    building = folder.with_suffix(".tmp")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(release, building)
    tensors = load_file(release / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if not name.startswith(("classifier.", "bert.pooler."))}
    save_file(kept, building / "model.safetensors", {"format": "pt"})
    building.rename(folder)


def _sample_insuranceqa(places: Places, folder: Path, every: int) -> Path:
    """A folder of InsuranceQA with each so many-th question, and 500 candidates of each by BM25."""
    made = folder / "pools"
    if (made / ANSWERS).exists():
        return made
    source = folder / "sample"
    source.mkdir(parents=True, exist_ok=True)
    for name in (ANSWERS, "train.jsonl", "valid.jsonl", "test.jsonl"):
        found = find_files(places.insuranceqa, [name])
        if not found:
            raise KinspanError(f"insuranceqa={places.insuranceqa}: {name} is not there")
        lines = [text + "\n" for _, text in read_lines(found[0])]
        write_atomically(source / name, lines if name == ANSWERS else lines[::every])
    build_pools(source, made)
    return made


def describe_materials(recipe: Recipe, places: Places, targets: list[Target]) -> dict[str, Any]:
    """What the page needs beside the rows: counts, fingerprints, and BM25 and TF-IDF."""
    corpora = {forum: Corpus(places.name_corpus(forum)) for forum in recipe.all_forums}
    scores = {BM25: score_bm25, TF_IDF: score_tf_idf}
    baselines = {name: {t.name: summarize(t.data, score(t.data)) for t in targets} for name, score in scores.items()}
    return {
        "identity": recipe.identity,
        "starts": {start: fingerprint_model(model) for start, model in places.starts.items()},
        "corpora": {forum: corpus.manifest.fingerprint for forum, corpus in corpora.items()},
        "sizes": {forum: _count_training(corpus) for forum, corpus in corpora.items()},
        "targets": {
            t.name: {
                "questions": t.data.num_questions,
                "pairs": t.data.num_pairs,
                "metric": t.metric,
                "fingerprint": t.fingerprint,
            }
            for t in targets
        },
        "baselines": baselines,
        "chance": {t.name: [round(value, 6) for value in expect_ap(t.data)] for t in targets},
    }


def expect_ap(data: AnswerSet) -> list[float]:
    """The expected average precision of each question where its candidates stand in random order.

    The k-th of n is right with probability R/n, and then (k-1)(R-1)/(n-1) right ones stand before it, in the mean.
    """
    expected = []
    for rows in data.rows():
        count, right = len(data.labels[rows]), int(data.labels[rows].sum())
        place = np.arange(1, count + 1)
        before = (place - 1) * (right - 1) / max(count - 1, 1)
        expected.append(float(((1 + before) / place).mean()))
    return expected


def _count_training(corpus: Corpus) -> int:
    """Questions with a title and a body that may be trained on."""
    return sum(shard.usable["title_body"]["train"]["anchors"] for shard in corpus.manifest.shards)


def compare_with_targets(recipe: Recipe, places: Places, targets: list[Target]) -> dict[str, list[float]]:
    """For each forum, for all and for those of the fusion: the cosine of its mean embedding with each target's."""
    texts = {forum: domains.read_questions(Corpus(places.name_corpus(forum))) for forum in recipe.all_forums}
    vectors = domains.embed_domains(texts)
    for name, forums in ((MULTI, recipe.all_forums), (FUSION, recipe.forums)):
        mean = np.sum([vectors[forum] for forum in forums], axis=0)
        vectors[name] = mean / np.linalg.norm(mean)
    asked = domains.embed_domains({t.name: t.data.questions for t in targets})
    return {name: [round(float(v @ t), 4) for t in asked.values()] for name, v in vectors.items()}


def summarize(data: AnswerSet, scores: np.ndarray) -> dict[str, Any]:
    """The figures of every question, as a line of results holds them."""
    figures = compute_question_metrics(data, scores)
    return pack_figures(figures[MAP], figures[MRR], scores)


def settle_materials(recipe: Recipe, places: Places, store: Store) -> list[Target]:
    """Returns the targets, and writes what is known of them where it is not written yet.

    Raises KinspanError where the results are of other starts, targets or settings.
    """
    targets = make_materials(recipe, places)
    known = store.read(NAME)
    if known is None:
        store.write(NAME, describe_materials(recipe, places, targets))
        return targets
    told = json.loads(json.dumps(recipe.identity))
    if known["identity"] != told:
        raise KinspanError(f"{store.folder} holds results of other settings: delete them, or name another --results")
    corpora = {forum: Corpus(places.name_corpus(forum)).manifest.fingerprint for forum in recipe.all_forums}
    if other := [forum for forum in corpora if corpora[forum] != known["corpora"][forum]]:
        raise KinspanError(f"{store.folder} holds results of another corpus of {other[0]}: give --results")
    starts = {start: fingerprint_model(model) for start, model in places.starts.items()}
    if other := [start for start in starts if starts[start] != known["starts"][start]]:
        raise KinspanError(f"--start: {store.folder} holds results of another start ({other[0]}): give --results")
    if other := [t.name for t in targets if t.fingerprint != known["targets"][t.name]["fingerprint"]]:
        raise KinspanError(f"{store.folder} holds results of other questions of {other[0]}: give --results")
    return targets
