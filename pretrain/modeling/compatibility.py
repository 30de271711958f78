"""Whether model, tokenizer and the length of pairs go together: a run and its dry run ask the same."""

from typing import Any

from data_pipeline import tokenizers
from data_pipeline.errors import KinspanError

from .electra import ReplacedTokenModel
from .families import FAMILIES
from .pair_model import PairModel
from .siamese.model import SiameseModel

TrainedModel = PairModel | ReplacedTokenModel | SiameseModel


def check_fits(model: TrainedModel, model_name: str, generator_name: str, tokenizer: Any, max_length: int) -> None:
    """Raises KinspanError where a pair of ``max_length`` tokens, or the tokenizer's ids, are more than a model embeds.

    tokenizer: None in a dry run that cannot reach the hub: then the length alone is checked
    """
    parts = [("--model", model_name, model.config)]
    if isinstance(model, ReplacedTokenModel):
        parts.append(("--generator", generator_name, model.generator.config))
    for flag, name, config in parts:
        _check_positions(config, max_length, flag, name)
        if tokenizer is not None:
            _check_ids(config, tokenizer, flag, name)


def _check_positions(config: Any, max_length: int, flag: str, name: str) -> None:
    positions = config.max_position_embeddings - FAMILIES[config.model_type].first_position(config)
    if max_length > positions:
        raise KinspanError(f"--max_length {max_length} is more than the {positions} positions of {flag} {name}")


def _check_ids(config: Any, tokenizer: Any, flag: str, name: str) -> None:
    if tokenizer.mask_token_id is None:
        raise KinspanError(f"{flag} {name}: its tokenizer has no mask token, which masked LM needs")
    types = getattr(config, "type_vocab_size", 0)
    highest = max(tokenizers.read_pair_template(tokenizer).types)
    if FAMILIES[config.model_type].token_types and 0 < types <= highest:
        raise KinspanError(f"{flag} {name} knows {types} token types, its tokenizer gives a second text another one")
    if len(tokenizer) > config.vocab_size:
        raise KinspanError(f"{flag} {name}: its tokenizer has {len(tokenizer)} entries, the model {config.vocab_size}")
