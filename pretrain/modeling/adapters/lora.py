"""LoRA, by the library ``peft``: narrow matrices beside those of the queries and values of attention.

Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models": ``W + scale * B A``, B starting at zero.
"""

from typing import Any

from .parts import LORA_SCALE

NAME = "default"  # peft's name of the adapter, in the names of its parameters
TARGETS = {  # the linear layers of each family that make queries and values
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "electra": ("query", "value"),
    "albert": ("query", "value"),
    "mpnet": ("q", "v"),
    "deberta-v2": ("query_proj", "value_proj"),
    "modernbert": ("Wqkv",),
}


def inject(encoder: Any, rank: int) -> None:
    """Puts LoRA of this rank into the encoder's attention, drawn from torch's generator."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = list(TARGETS[encoder.config.model_type])
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=LORA_SCALE * rank, target_modules=targets), encoder)  # type: ignore[arg-type]


def merge(classifier: Any) -> None:
    """Adds LoRA's products into the weights of a model, and leaves a plain one."""
    from peft.tuners.lora import LoraLayer

    for parent in list(classifier.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLayer):
                layer.merge(safe_merge=True)  # type: ignore[attr-defined]
                setattr(parent, name, layer.get_base_layer())


def shorten(name: str) -> str | None:
    """Returns a parameter's name in an adapter's file; None if it is not LoRA's. ``name``: from the encoder on"""
    return name.replace(f".{NAME}.", ".") if ".lora_" in name else None
