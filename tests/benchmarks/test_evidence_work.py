"""The jobs of the evidence study, on a recipe of tiny models: from a start made from scratch to lines of results."""

import itertools
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import BertForMaskedLM, ElectraForMaskedLM, ElectraModel

from benchmarks.evidence import runner, work
from benchmarks.evidence.objectives import SSP_EASY, SSP_HARD
from benchmarks.evidence.plan import Places, find_ready, plan_jobs
from benchmarks.evidence.recipe import FINETUNE, RECIPE, read_recipe
from benchmarks.evidence.results import Store, settle_choices
from benchmarks.evidence.runner import Study, run_jobs
from benchmarks.evidence.starts import convert_to_electra, write_blank
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.sampling.pairs import EASY, HARD
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from finetune.studies.study_file import make_config
from finetune.training.stages import load_data
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from pretrain.modeling.default_model import default_model
from pretrain.runtime.precision import choose_precision

TINY = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
TIMES = {"seconds_of_update": 0.1, "seconds_of_validation": 1, "seconds_around": 5}
PILOT = {
    "machine": "a processor",
    "startup_seconds": 10,
    "sets": {"wikiqa": {"train_positives": 12}},
    "a": {"tokens_per_second": 1000, "sets": {"wikiqa": TIMES}},
}
ARMS = ("none", "mlm", "ssp", "easy", "rtd-ssp")


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory):
    """The study's recipe with one start of one layer, five arms, a choice, and runs of a few updates."""
    content = yaml.safe_load(RECIPE.read_text())
    start = content["starts"]["a"]
    start["scratch"]["config"] = TINY
    start["scratch"]["pretrain"] |= {"max_tokens": 3000, "eval_pairs": 20, "eval_steps": 5, "save_steps": 2}
    start["pretrain"] |= {"max_tokens": 3000, "eval_pairs": 20}
    content |= {"starts": {"a": start}, "threads": 1}
    content["pretrain"]["save_steps"] = 2
    content["arms"] = {name: content["arms"][name] for name in ARMS}
    content["finetune"] |= {"batch_size": 8, "micro_batch_size": 8}
    content["sets"] = {"wikiqa": {"epochs": 2}}
    content["choices"] = [{**content["choices"][0], "values": [1e-3, 1e-2]}]
    start["pretrain"]["learning_rate"] = 1e-3
    group = {"start": "a", "seeds": 1, "sets": ["wikiqa"]}
    content["groups"] = [
        {"name": "headline", "arms": list(ARMS), **group},
        {"name": "zero-shot", "arms": ["none", "ssp"], "measures": ["head", "cosine"], **group},
        {"name": "few", "arms": ["none"], "variant": "half of the questions", "share": 0.5, **group},
        {"name": "fewer", "arms": ["ssp"], "questions": [6], **group},
    ]
    content["comparisons"] = [["a/ssp/wikiqa", "a/mlm/wikiqa"]]
    content["calibration"] |= {"flipped": "a/mlm/wikiqa"}
    content["rerun"] |= {"seed": 1}
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="session")
def answers(tmp_path_factory):
    """Questions of five candidates, of which one shares their words."""
    folder, rng = tmp_path_factory.mktemp("answers"), random.Random("answers")
    for split, count in {"train": 12, "dev": 6, "test": 8}.items():
        lines = []
        for number in range(count):
            words = [f"{split}{rng.randrange(1000)}" for _ in range(3)]
            for place in range(5):
                text = " ".join(words if place == number % 5 else [f"other{rng.randrange(1000)}"] * 3)
                lines.append(
                    {"question": f"where {words[0]} {number}", "answer": text, "label": int(place == number % 5)}
                )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"files={folder}"


@pytest.fixture
def told(small_recipe, answers, tiny_corpus, tmp_path):
    places = {"work": str(tmp_path / "work"), "corpus": str(tiny_corpus), "data": {"wikiqa": answers}}
    return {"places": places, "results": str(tmp_path / "results"), "recipe": str(small_recipe), "threads": 1}


def plan(told, chosen=None):
    """The jobs; chosen: values of choices, instead of those that results settle."""
    store, recipe = Store(Path(told["results"])), read_recipe(Path(told["recipe"]))
    return plan_jobs(replace(recipe, chosen=chosen) if chosen else settle_choices(recipe, store), store)


def run_job(told, number, tmp_path, monkeypatch):
    """In this process, as ``python -m benchmarks.evidence.work`` would."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**told, "job": number}))
    monkeypatch.setattr(sys, "argv", ["work", str(path)])
    work.main()


def test_every_kind_of_job_leaves_its_results(told, tmp_path, monkeypatch):
    """From the start to zero-shot rows; the row that runs again from scratch has the same scores to the bit."""
    for number, job in enumerate(plan(told)):
        assert not job.is_done
        run_job(told, number, tmp_path, monkeypatch)
    assert all(job.is_done for job in plan(told))
    store = Store(Path(told["results"]))
    assert store.read("rerun")["identical"]
    start = store.read("start-a")
    assert start["validation_mlm_loss"][-1][1] < start["validation_mlm_loss"][0][1]
    jobs = {row.name: row for job in plan(told) for row in job.rows}
    lines = {name: next(iter(store.read_lines(row).values())) for name, row in jobs.items()}
    assert all(len(line["ap"]) == 8 for line in lines.values())
    assert lines["a/none/wikiqa"]["pretrain"] is None
    # bf16, as the recipe has it, only where it is not emulated
    assert lines["a/none/wikiqa"]["finetune"]["precision"] == choose_precision("auto", zero_stage=1)
    assert lines["a/ssp/wikiqa"]["pretrain"] == lines["a/ssp, zero-shot by the pair head/wikiqa"]["pretrain"]
    scores = [line["scores"] for line in lines.values()]
    assert len(set(scores)) == len(scores)


def test_a_rerun_that_differs_is_told(told):
    line = {"seed": 1, "ap": [1.0], "rank": [1], "scores": "a", "dev_scores": "b", "machine": "m"}
    row = plan(told)[-1].rows[0]
    assert work.compare_again(row, line, line)["identical"]
    assert not work.compare_again(row, line, {**line, "scores": "c"})["identical"]


def test_a_share_of_the_questions_is_the_same_for_every_arm(told, answers):
    from finetune.data.registry import load_split

    train = load_split(answers, "train")[0]
    drawn = [work.draw_share(train, 0.25, seed).questions for seed in (1, 1, 2)]
    assert len(drawn[0]) == 3
    assert drawn[0] == drawn[1] != drawn[2]
    assert work.draw_share(train, 0.001, 1).num_questions == 1


def test_questions_are_drawn_down_together(answers):
    """Of one seed the same ones whatever is asked for before, the fewer among the more, and dev with half as many."""
    data = load_data(make_config({"data": answers}))
    few, more, other = (work.draw_questions(data, count, seed) for count, seed in ((4, 1), (8, 1), (4, 2)))
    assert [(d.train.num_questions, d.dev.num_questions) for d in (few, more)] == [(4, 2), (8, 4)]
    for split in ("train", "dev"):
        drawn = [set(getattr(d, split).questions) for d in (few, more, other)]
        assert drawn[0] < drawn[1]
        assert drawn[0] != drawn[2]
    everything = work.draw_questions(data, 1000, 1)
    assert everything.train.questions == data.train.questions
    assert everything.dev.questions == data.dev.questions
    assert few.test is data.test


def test_a_row_of_other_data_is_refused(told, answers):
    row = plan(told)[-1].rows[0]
    data = load_data(make_config({"data": answers}))
    work.check_data(row, data)  # a recipe that names none
    work.check_data(replace(row, identity={"data": work.fingerprint_data(data)}), data)
    with pytest.raises(KinspanError, match="wikiqa: the recipe is of data with the fingerprint another"):
        work.check_data(replace(row, identity={"data": "another"}), data)


def test_a_corpus_other_than_the_recipes_is_refused(told, tmp_path):
    content = yaml.safe_load(Path(told["recipe"]).read_text())
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content | {"fingerprints": {"corpus": "another", "wikiqa": "some"}}))
    with pytest.raises(KinspanError, match="is of a corpus with the fingerprint another"):
        run_jobs(Study(Places(**told["places"]), Store(tmp_path / "results"), recipe), lambda: None)


def test_sets_are_described_until_a_stop_is_wanted(told, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "_run_process", lambda study, name, told, wanted: asked.append((name, wanted())))
    runner._describe_sets(
        Study(Places(**told["places"]), Store(tmp_path / "results"), Path(told["recipe"])), lambda: False
    )
    assert asked == [("sets", False)]


def test_the_electra_computes_what_the_bert_does(tmp_path):
    """Its discriminator's encoder, and its generator with the masked-LM head."""
    torch.manual_seed(0)
    write_blank(TINY, tmp_path / "bert", with_weights=True)
    convert_to_electra(tmp_path / "bert", tmp_path / "electra")
    bert = BertForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    torch.nn.init.normal_(bert.cls.predictions.bias)
    bert.save_pretrained(tmp_path / "bert")  # a bias that is not zero shows whether it is carried over
    convert_to_electra(tmp_path / "bert", tmp_path / "electra")
    ids = torch.randint(1000, 20_000, (2, 9))
    with torch.no_grad():
        encoder = ElectraModel.from_pretrained(tmp_path / "electra").eval()
        generator = ElectraForMaskedLM.from_pretrained(tmp_path / "electra/generator").eval()
        assert torch.allclose(encoder(ids).last_hidden_state, bert.bert(ids).last_hidden_state, atol=1e-5)
        assert torch.allclose(generator(ids).logits, bert(ids).logits, atol=1e-4)
    assert not [name for name in load_file(tmp_path / "electra/model.safetensors") if not name.startswith("electra.")]


@pytest.mark.parametrize(("objective", "other"), [(SSP_EASY, HARD), (SSP_HARD, EASY)], ids=["easy", "hard"])
def test_negatives_of_one_kind(objective, other, tiny_corpus):
    """Documents of four paragraphs or more: none of the other kind but where a document has too few that suit."""
    tokenizer = load_tokenizer(default_model())
    name = f"benchmarks.evidence.objectives:{'SSP_EASY' if objective is SSP_EASY else 'SSP_HARD'}"
    stream = PairStream(
        parse_mixture(name, "matched").read_from(Corpus(tiny_corpus)),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=64,
        masking=MaskedLM(tokenizer.mask_token_id, len(tokenizer), 0.15, None),
    )
    kinds = stream.batch(0, 500).kinds
    share = (kinds == other).mean()
    assert share == 0 if other == HARD else share < 0.25
    assert (kinds == 0).mean() == pytest.approx(0.2)


def test_titles_are_paired_with_first_sentences(make_corpus, tiny_documents):
    """The positive is the document's own first sentence, the negative another document's, and nothing follows."""
    corpus = Corpus(make_corpus(tiny_documents, title_texts=True))
    tokenizer = load_tokenizer(default_model())
    stream = PairStream(
        parse_mixture("benchmarks.evidence.objectives:TITLE_FIRST", "matched").read_from(corpus),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=128,
        masking=MaskedLM(tokenizer.mask_token_id, len(tokenizer), 1e-9, None),
    )
    batch = stream.batch(0, 20)
    documents = {words(doc["title"]): words(doc["paragraphs"][0].split(". ")[0]) for doc in tiny_documents}
    found = set()
    for ids, label in zip(np.split(batch.input_ids, batch.starts[1:-1]), batch.labels, strict=True):
        title, sentence, _ = tokenizer.decode(ids).removeprefix("[CLS]").split("[SEP]")
        assert (documents[words(title)] == words(sentence)) == bool(label)
        assert words(sentence) in documents.values()
        found.add(bool(label))
    assert found == {True, False}


def words(text):
    """Its words in lower case, as the tokenizer's decoder may space them otherwise."""
    return "".join(character for character in text.lower() if character.isalnum())


@pytest.mark.slow
def test_a_study_that_was_stopped_ends_with_the_same_results(told, tmp_path):
    """Each job in a process of its own; one study is stopped again and again, the other one is not."""
    content = yaml.safe_load(Path(told["recipe"]).read_text())
    content["groups"] = [{**content["groups"][0], "arms": ["none", "ssp"]}]
    content |= {"comparisons": [["a/ssp/wikiqa", "a/none/wikiqa"]]}
    content["calibration"]["flipped"] = "a/none/wikiqa"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))

    def run(name, hours):
        places = Places(**{**told["places"], "work": str(tmp_path / f"work-{name}")})
        store = Store(tmp_path / name)
        store.write("pilot", PILOT)
        return store, Study(places, store, recipe, hours)

    whole, study = run("whole", None)
    assert run_jobs(study, lambda: None)
    for seconds in itertools.count(20, 20):  # on a busy machine a process takes long to begin
        parts, study = run("parts", seconds / 3600)
        if run_jobs(study, lambda: None):
            break
    assert seconds > 20
    for job in plan_jobs(study.recipe, parts):
        for row in job.rows:
            one, other = (untimed(store.read_lines(row)[job.seed]) for store in (whole, parts))
            assert one == other
    assert not list((tmp_path / "work-parts/pretrained").iterdir())  # no weights are kept


def test_results_of_another_corpus_are_refused(told, tmp_path):
    """Before anything is written: which questions are contaminated would no longer be those of the rows."""
    store = Store(tmp_path / "results")
    store.write("wikiqa", {"corpus": {"fingerprint": "another"}})
    row = plan(told)[-1].rows[0]
    store.add(row, {"seed": 1})
    with pytest.raises(KinspanError, match="holds results of another corpus"):
        run_jobs(Study(Places(**told["places"]), store, Path(told["recipe"])), lambda: None)
    assert store.read("wikiqa")["corpus"]["fingerprint"] == "another"


def untimed(line):
    """A line of results without what is measured by the clock."""
    if isinstance(line, dict):
        return {name: untimed(value) for name, value in line.items() if name not in ("seconds", "wall_seconds")}
    return line


def test_jobs_begin_when_what_they_need_is_there(told):
    """The start first; choices one by one, their values side by side; a second run of a row after its first one."""
    jobs = plan(told)
    end = lambda numbers: [replace(job, is_done=number in numbers) for number, job in enumerate(jobs)]  # noqa: E731
    choice = read_recipe(Path(told["recipe"])).choices[0]
    kinds = [job.kind for job in jobs]
    assert find_ready(jobs, set()) == 0 == kinds.index("start")
    assert find_ready(jobs, {0}) is None
    assert find_ready(end({0}), {1}) == 2  # the other value of the choice
    free = jobs[find_ready(end({0}), {1, 2})]
    assert all(row.measure != FINETUNE for row in free.rows)  # rows that are fine-tuned wait for the choice
    jobs = plan(told, {choice.name: choice.values[0]})
    assert find_ready(end({0}), {1, 2}) == 3
    again, first = kinds.index("rerun"), next(n for n, job in enumerate(jobs) if job.name.startswith("a/ssp/wikiqa"))
    others = set(range(len(jobs))) - {again, first}
    assert find_ready(end(others), {first}) is None
    assert find_ready(end(others | {first}), set()) == again
    same = next(n for n in range(again, len(jobs)) if n != again and jobs[n].pretraining == jobs[first].pretraining)
    assert find_ready(end(set(range(len(jobs))) - {first, same}), {first}) is None  # both make the same weights


def test_seeds_that_end_at_the_same_moment_are_all_kept(told, tmp_path):
    row = plan(told)[-1].rows[0]
    store = Store(tmp_path / "lines")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: store.add(row, {"seed": seed}), range(40)))
    assert sorted(store.read_lines(row)) == list(range(40))
