"""What the checks work on: the kit's models and corpora, and small models in their place for ``--quick``."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers import load_tokenizer

from .kit import CORPORA, MODELS, WIKIQA


@dataclass(frozen=True)
class Row:
    """What a check has found.

    what:    the thing that was checked or measured, unlike that of the check's other rows
    figures: numbers, or words, by name with their unit
    holds:   whether what must be so is so; None where a row only measures
    """

    what: str
    figures: dict[str, Any]
    holds: bool | None = None


@dataclass(frozen=True)
class Model:
    """A model of the kit.

    title:  its name for people
    corpus: the kit's corpus of its tokenizer, "roberta" or "bert"
    family: of pretrain.modeling.families
    config: what differs from the family's defaults in ``transformers``
    """

    title: str
    corpus: str
    family: str
    config: dict[str, Any]


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_THIRD = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
ELECTRA_GENERATOR = "electra-base-generator"
KIT_MODELS = {
    "roberta-base": Model("RoBERTa-base", "roberta", "roberta", _ROBERTA),
    "minilm-l6": Model("MiniLM-L6", "bert", "bert", _MINILM),
    "electra-base": Model("ELECTRA-base", "bert", "electra", {**_BASE, "embedding_size": 768}),
    ELECTRA_GENERATOR: Model("ELECTRA-base's generator", "bert", "electra", {**_THIRD, "embedding_size": 768}),
    "modernbert-base": Model("ModernBERT-base", "roberta", "modernbert", {"vocab_size": 50368}),
}

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
_OF_FAMILY: dict[str, dict[str, Any]] = {  # what sets a small model of the family apart from BERT's
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 2},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "mpnet": {"max_position_embeddings": 514},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {"num_hidden_layers": 4, "local_attention": 32, "global_attn_every_n_layers": 2},
}


def write_config(folder: Path, family: str, tokenizer: Any, config: dict[str, Any]) -> Path:
    """A model folder of the family, without weights: ``config`` and the tokenizer. Returns the folder."""
    from transformers import AutoConfig

    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")}
    ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    size = max(len(tokenizer), config.get("vocab_size", 0))
    AutoConfig.for_model(family, **{**ids, **config, "vocab_size": size}).save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    return folder


@dataclass(frozen=True)
class Bench:
    """What a check is given: the kit, a folder that is deleted afterwards, and whether tiny models stand in."""

    kit: Path
    scratch: Path
    quick: bool

    def corpus(self, name: str) -> str:
        """The folder of the corpus of that tokenizer, "roberta" or "bert"."""
        return str(self.kit / CORPORA / name)

    @property
    def wikiqa(self) -> Path:
        """The folder of WikiQA's test set, which a kit may lack."""
        return self.kit / WIKIQA

    def model(self, name: str, **changes: Any) -> str:
        """The folder of a model of KIT_MODELS, of the kit or small, its config changed by ``changes``."""
        kept = self.kit / MODELS / name
        if not self.quick and not changes:
            return str(kept)
        known = KIT_MODELS[name]
        small = {**SMALL, **_OF_FAMILY.get(known.family, {})} if self.quick else {}
        folder = self.scratch / "-".join((name, *map(str, changes.values())))
        return str(write_config(folder, known.family, load_tokenizer(str(kept)), {**known.config, **small, **changes}))

    def model_with_weights(self, name: str) -> str:
        """Likewise, with drawn weights beside the config: loading them takes less time than drawing them again."""
        from transformers import AutoConfig, AutoModelForMaskedLM
        from transformers.utils.logging import disable_progress_bar

        folder = self.scratch / f"{name}-weights"
        if not folder.exists():
            disable_progress_bar()
            shutil.copytree(self.model(name), folder)
            AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        return str(folder)

    def small_model(self, family: str) -> str:
        """A small model of any family, with BERT's tokenizer, whose attention scores differ from the start."""
        config = {**SMALL, **_OF_FAMILY.get(family, {}), "initializer_range": 0.1}
        tokenizer = load_tokenizer(str(self.kit / MODELS / "minilm-l6"))
        return str(write_config(self.scratch / f"small-{family}", family, tokenizer, config))
