"""Small models for tests, made from their configs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, ElectraConfig, RobertaConfig

from data_pipeline.tokenizers import load_tokenizer
from pretrain.defaults import default_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_model("bert", "roberta" or "electra", **config)``: a folder of a small model's config and tokenizer, no weights.

    The default model's tokenizer serves all families, so that no other is needed.
    """

    def make(family: str = "bert", **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(f"small-{family}")
        tokenizer = load_tokenizer(default_model())
        tokenizer.save_pretrained(str(folder))
        if family == "bert":
            config = BertConfig(vocab_size=len(tokenizer), **SMALL | options)
        elif family == "electra":
            config = ElectraConfig(vocab_size=len(tokenizer), **SMALL | {"embedding_size": 24} | options)
        else:
            own = {"max_position_embeddings": 514, "type_vocab_size": 2, "pad_token_id": 1}
            config = RobertaConfig(vocab_size=len(tokenizer), **SMALL | own | options)
        config.save_pretrained(str(folder))
        return folder

    return make


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
