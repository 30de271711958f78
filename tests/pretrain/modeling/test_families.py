"""Each family from its config to a release, and the tokenizers that the families use."""

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.tokenizers import load_tokenizer
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_model
from pretrain.release.release import release
from pretrain.run import pretrain
from tests.cases import mark_slow
from tests.pretrain.steps import make_run, read_weights
from tests.synthetic import write_unigram


@pytest.mark.parametrize("family", mark_slow(FAMILIES, ("electra", "distilbert", "deberta-v2", "modernbert")))
def test_trained_checkpointed_and_released(family, make_model, tiny_corpus, tmp_path):
    """A few steps through the engine; then a release that loads without fresh weights."""
    small = make_model(family, initializer_range=0.1)
    settings = {"token_loss": "mlm", "micro_batch_size": 5, "learning_rate": 3e-3, "max_steps": 8, "save_steps": 8}
    config = make_run(tiny_corpus, small, tmp_path / "run", **settings, eval_pairs=20, eval_steps=8)
    summary = pretrain(config)
    assert summary["last_validation"]["mlm_loss"] < summary["first_validation"]["mlm_loss"]

    trained, _ = load_model(str(small), seed=1)
    weights = read_weights(tmp_path / "run", 8)
    lost = trained.eval().load_state_dict(weights, strict=False)
    assert not lost.unexpected_keys
    assert {n for n, _ in trained.named_parameters()} == weights.keys()

    _, notes = load_model(str(release(tmp_path / "run", tmp_path / "release")), seed=9)
    assert not any("fresh" in note for note in notes)


def test_a_unigram_tokenizer_gives_the_ids_of_a_pair(make_corpus, make_stream, tiny_documents, tmp_path):
    folder = write_unigram(tmp_path / "xlm-r")
    corpus = Corpus(make_corpus(tiny_documents[:20], folder))
    tokenizer = load_tokenizer(str(folder))
    batch = make_stream(corpus, max_length=5000).batch(0, 40)
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = batch.input_ids[start:end].tolist()
        middle = ids.index(tokenizer.sep_token_id)
        a, b = map(tokenizer.decode, (ids[1:middle], ids[middle + 2 : -1]))
        assert tokenizer(a, b, split_special_tokens=True)["input_ids"] == ids


def test_a_tokenizer_of_pieces_across_words_is_refused(make_corpus, tiny_documents, tmp_path):
    folder = write_unigram(tmp_path / "odd", cross_words=True)
    with pytest.raises(KinspanError, match="--tokenizer odd"):
        make_corpus(tiny_documents[:20], folder)


def test_modernbert_pools_first_tokens(make_model):
    model, _ = load_model(str(make_model("modernbert", classifier_pooling="mean")), seed=1)
    assert model.config.classifier_pooling == "cls"
