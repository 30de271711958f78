"""The probe by itself; tests/pretrain/test_probe.py has it inside of pre-training."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import METRICS
from finetune.ranking.ranker import load_own_tokenizer, load_ranker, save_ranker
from finetune.training import probe
from finetune.training.probe import draw_probe_sets, make_probe, measure_fine_tuned

WORDS = ["apple", "river", "stone", "cloud", "violin", "harbour", "lantern", "meadow", "copper", "falcon"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def write(folder, questions=30, candidates=10):
    """Whoever reads the word "yes" can rank them; every fifth question has no answer."""
    random = np.random.default_rng(0)
    for split in ("train", "dev"):
        lines = []
        for q in range(questions):
            for c in range(candidates):
                label = int(c in (2, 5) and q % 5 > 0)
                text = f"{' '.join(random.choice(WORDS, 3))} {'yes' if label else 'no'} {c}"
                lines.append({"question": f"what of {q} {split}", "answer": text, "label": label})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"files={folder}"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A small model of its own weights, as a release has them."""
    from transformers import AutoConfig

    from tests.synthetic import short_tokenizer

    folder = tmp_path_factory.mktemp("release")
    tokenizer = load_own_tokenizer(short_tokenizer())
    AutoConfig.for_model("bert", vocab_size=len(tokenizer), **SMALL).save_pretrained(str(folder))
    ranker, _ = load_ranker(str(folder))
    save_ranker(ranker.classifier.config, tokenizer, 128, ranker.state_dict(), folder)
    return folder


def test_the_sets_are_small_and_always_the_same(tmp_path):
    spec = write(tmp_path)
    train, dev = draw_probe_sets(spec, 100)
    again = draw_probe_sets(spec, 100)
    assert 60 < train.num_pairs <= 100  # the two answers of a question share negatives
    assert (dev.num_questions, dev.num_pairs) == (24, 240)  # clean: without those that have no answer
    for one, other in zip((train, dev), again, strict=True):
        assert one.questions == other.questions
        assert one.answers.equals(other.answers)
    assert set(train.questions) == set(train.take(train.positives > 0).questions)
    assert draw_probe_sets(spec, 1)[0].num_pairs == probe.LIST_SIZE  # an answer with its negatives at least
    assert draw_probe_sets(spec, 10**9)[0].num_questions == 24


def test_a_large_dev_set_is_cut_to_whole_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "DEV_PAIRS", 35)
    _, dev = draw_probe_sets(write(tmp_path), 100)
    assert (dev.num_questions, dev.num_pairs) == (3, 30)


def test_it_learns_and_leaves_the_release_alone(tmp_path, release, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(probe, "LEARNING_RATE", 5e-3)
    train, dev = draw_probe_sets(write(tmp_path), 400)
    before = {path.name: path.read_bytes() for path in release.iterdir()}
    figures = measure_fine_tuned(release, train, dev)
    assert set(figures) == set(METRICS)
    assert figures["map"] > 0.9  # at random about 0.3
    assert measure_fine_tuned(release, train, dev) == figures
    assert {path.name: path.read_bytes() for path in release.iterdir()} == before


def test_a_model_of_few_positions_is_refused(tmp_path, release):
    short = tmp_path / "short"
    shutil.copytree(release, short)
    config = json.loads((short / "config.json").read_text()) | {"max_position_embeddings": 64}
    (short / "config.json").write_text(json.dumps(config))
    weights = load_file(str(short / "model.safetensors"))
    table = "bert.embeddings.position_embeddings.weight"
    save_file({**weights, table: weights[table][:64].clone()}, str(short / "model.safetensors"), {"format": "pt"})
    train, dev = draw_probe_sets(write(tmp_path), 10)
    with pytest.raises(KinspanError, match="--probe has pairs of 128 tokens"):
        measure_fine_tuned(short, train, dev)


def test_only_the_first_rank_probes(tmp_path, monkeypatch):
    spec, sizes, said = write(tmp_path), {"num_pairs": 50, "every_steps": 7}, []
    assert make_probe(spec, **sizes, say=said.append) is not None
    assert "every 7 steps" in said[0]
    assert "240 candidates of 24 dev questions" in said[0]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert make_probe(spec, **sizes) is None
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name)
    assert make_probe(None, **sizes) is None


@pytest.mark.parametrize(
    ("spec", "text"),
    [("wikiqa", "not a data set"), ("wikiqa=absent", "there is no such folder"), ("files={}", "no split dev")],
)
def test_what_is_no_data_set_is_refused(spec, text, tmp_path):
    write(tmp_path)
    (tmp_path / "dev.jsonl").unlink()
    with pytest.raises(KinspanError, match=f"^--probe .*{text}"):
        make_probe(spec.format(tmp_path), num_pairs=100, every_steps=10)
