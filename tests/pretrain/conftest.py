"""Small models for tests, made from their configs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig

from data_pipeline.tokenizers import load_tokenizer
from tests.synthetic import short_tokenizer, synthetic_documents, write_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BERT_IDS = {"cls_token_id": 101, "bos_token_id": 101, "sep_token_id": 102, "eos_token_id": 102, "pad_token_id": 0}
ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 2, "pad_token_id": 1}
RELATIVE = {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
RELATIVE |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "mpnet": {"max_position_embeddings": 514, "pad_token_id": 1},
    "deberta-v2": RELATIVE | {"type_vocab_size": 0, "conv_kernel_size": 3, "conv_act": "gelu"},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 16, "global_attn_every_n_layers": 2, **BERT_IDS},
}


def make_config(family: str, **options: Any) -> PreTrainedConfig:
    """A small model's config, with what sets the family apart from BERT."""
    shape = SMALL | OWN.get(family, {}) | options
    if family == "distilbert":
        shape["hidden_dim"] = shape.pop("intermediate_size")
    return AutoConfig.for_model(family, **shape)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_model("bert", tokenizer=short, **config)``: a folder of a small model's config and tokenizer, no weights.

    One tokenizer serves all families, so that no other is needed. Each has what sets it apart from
    BERT: ALBERT shared layers in groups, ModernBERT a window shorter than the pairs of ``tiny_corpus``, and so on.
    """

    def make(family: str = "bert", tokenizer: str | None = None, **options: Any) -> Path:
        given = load_tokenizer(tokenizer or short_tokenizer())
        return write_model(tmp_path_factory.mktemp(f"small-{family}"), None, family, tokenizer=given, **options)

    return make


@pytest.fixture(scope="session")
def make_base(make_model: Callable[..., Path]) -> Callable[..., Path]:
    """``make_base("bert", seed=3, **config)``: the same with weights, as an adapter's base needs them."""

    def make(family: str = "bert", seed: int = 3, **options: Any) -> Path:
        folder = make_model(family, initializer_range=0.2, **options)
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder, num_labels=1)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def base(make_base: Callable[..., Path]) -> Path:
    return make_base()


@pytest.fixture(scope="session")
def other_corpus(make_corpus: Callable[..., Path]) -> Path:
    return make_corpus(synthetic_documents(40, "other"), validation_share=0.3, shard_tokens=4000)
