"""How long texts may be that a model reads, and which tokenizers fit it."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, Data2VecTextConfig, ErnieConfig, XLNetConfig

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.modeling.limits import check_fits
from tests.synthetic import short_tokenizer

SMALL = {"vocab_size": 31_000, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (Data2VecTextConfig(**SMALL, type_vocab_size=2, max_position_embeddings=66, pad_token_id=1), 64),
        (ErnieConfig(**SMALL), 512),
        (XLNetConfig(vocab_size=31_000, d_model=32, n_layer=1, n_head=2, d_inner=64), None),
    ],
)
def test_positions_of_families_that_are_not_trained_here(config, positions):
    model = AutoModelForSequenceClassification.from_config(config).eval()
    tokenizer = load_tokenizer(short_tokenizer())
    check_fits("it", model, tokenizer, positions or 100_000)
    if positions:
        model(torch.full((1, positions), 1000))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, positions + 1), 1000))
        with pytest.raises(KinspanError, match=f"--max_length {positions + 1}"):
            check_fits("it", model, tokenizer, positions + 1)


def test_a_second_text_needs_its_token_type():
    tokenizer = load_tokenizer(short_tokenizer())
    small = {**SMALL, "vocab_size": len(tokenizer), "intermediate_size": 64, "type_vocab_size": 1}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **small))
    with pytest.raises(KinspanError, match="token type 1"):
        check_fits("it", model, tokenizer, 128)
