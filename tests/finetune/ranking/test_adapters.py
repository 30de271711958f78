"""Adapters as rankers: zero-shot scores, fine-tuning, refusals."""

import shutil

import pytest
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer_as_it_is
from finetune.data.registry import load_split
from finetune.ranking.encode import encode_pairs
from finetune.ranking.model import score_answers
from finetune.ranking.ranker import check_no_bottlenecks, find_max_length, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs
from pretrain.release.folder import FACTS, fingerprint_model
from tests.adapters import write_random_adapter


@pytest.fixture(scope="module")
def make_adapter(make_model, tmp_path_factory):
    """``make_adapter("pfeiffer")``: a folder of an adapter beside a small base, its numbers drawn."""
    base = make_model(initializer_range=0.2)
    (base / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    return lambda method: write_random_adapter(tmp_path_factory.mktemp("adapters") / method, base, method)


@pytest.mark.parametrize("method", ["pfeiffer", "lora"])
def test_an_adapter_ranks_by_its_folder_alone(method, make_adapter, sets):
    """Packed and by transformers' own forward the same scores, which are not the base's."""
    if method == "lora":
        pytest.importorskip("peft")
    folder = make_adapter(method)
    data = load_split(f"files={sets}", "test")
    scores = score_answers(str(folder), data)
    ranker = load_ranker(str(folder))
    pairs = encode_pairs(data, load_own_tokenizer(str(folder)), find_max_length(str(folder)))
    assert scores == pytest.approx(score_pairs(ranker.eval(), pairs, torch.device("cpu")), abs=1e-5)
    ranker.classifier.set_attn_implementation("eager")
    row = pairs.pack(torch.arange(1).numpy(), torch.device("cpu"))
    own = {name: row[name][None].long() for name in ("input_ids", "token_type_ids")}
    with torch.no_grad():
        assert float(ranker.classifier(**own).logits) == pytest.approx(scores[0], abs=1e-5)
    assert scores.std() > 1e-3
    (folder / FACTS).write_text('{"max_length": 24}')
    assert find_max_length(str(folder)) == 24


def test_texts_begin_as_in_the_training_of_an_adapter(make_model, shared, tmp_path):
    tokenizer = load_tokenizer_as_it_is(str(shared / "tokenizers/roberta-base-tokenizer"))
    folder = write_random_adapter(tmp_path / "adapter", make_model("roberta", tokenizer=tokenizer), "pfeiffer")
    assert load_own_tokenizer(str(folder)).tokenize("what")[0] == "\u0120what"


def test_bottlenecks_are_not_fine_tuned_and_lora_is(make_adapter):
    pytest.importorskip("peft")
    with pytest.raises(KinspanError, match="--model"):
        check_no_bottlenecks(load_ranker(str(make_adapter("pfeiffer"))), "x")
    check_no_bottlenecks(load_ranker(str(make_adapter("lora"))), "x")


def test_a_run_knows_an_adapter_by_its_content_and_its_base(make_adapter, tmp_path):
    folder = make_adapter("pfeiffer")
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint_model(str(folder)) == fingerprint_model(str(tmp_path / "copy"))
    text = (tmp_path / "copy/adapter.json").read_text()
    (tmp_path / "copy/adapter.json").write_text(text.replace('"fingerprint": "', '"fingerprint": "0'))
    assert fingerprint_model(str(folder)) != fingerprint_model(str(tmp_path / "copy"))
