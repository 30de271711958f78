"""From settings to everything that a run needs, with every check that can be made before training starts."""

import json
import math
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from data_pipeline.core.hub import use_cache_alone
from data_pipeline.core.settings import cache_settings
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.order import TooFewDocuments
from data_pipeline.sampling.stream import PairStream
from objectives.mlm import MaskedLM
from objectives.rtd import mask_for_generator
from pretrain.engine.device import choose_precision, set_product_precision
from pretrain.engine.engine import complete_settings, read_deepspeed_config, start_distributed, warn_of_rate, zero_stage
from pretrain.engine.layout import Layout
from pretrain.engine.lock import RUN
from pretrain.engine.ranks import broadcast_from_rank_0, gather, make_first_on_each_machine
from pretrain.engine.run_folder import ADVICE, CHECKPOINTS, SUMMARY, check_shared, claim_folder, open_folder, shorten
from pretrain.engine.schedule import OPEN_ENDED, Schedule, make_schedule
from pretrain.engine.world import read_launcher_variables
from pretrain.modeling.adapters.model import AdapterModel, load_adapter_model
from pretrain.modeling.compilation import check_can_compile
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model
from pretrain.modeling.electra import ReplacedTokenModel, load_replaced_token_model
from pretrain.modeling.pair_model import (
    Load,
    PairModel,
    fingerprint_weights,
    holds_no_weights,
    load_config,
    load_model,
    load_or_build,
)
from pretrain.modeling.scorer import check_fits
from pretrain.modeling.siamese.model import TEMPERATURE, SiameseModel, load_siamese_model
from pretrain.planning.corpora import (
    build_mixture,
    drop_untrainable,
    explain_other_corpora,
    identify_corpora,
    list_sources,
    mix_validation,
    open_corpora_for_tokenizer,
)
from pretrain.release.adapter import explain_base, keep_adapter
from pretrain.release.release import GENERATOR_FOLDER, MODEL_FOLDER

from .batches import average_tokens
from .config import LENGTHS, MUST_MATCH_ACROSS_RANKS, VALIDATION_SEED, ObjectiveSettings, PretrainConfig, as_dict
from .facts import collect_facts, describe_for_release
from .finished import advise
from .lengthen import change_length
from .micro_batch import choose_micro_batch
from .planning.checks import check, find_unused_flags
from .watching.wandb_board import import_wandb

TrainedModel = PairModel | ReplacedTokenModel | SiameseModel
HEAVY_MASKED_LM = 0.5  # of the pair loss's weight: a new head's loss, 10 at first, then drowns a pair loss of .7


@dataclass(kw_only=True)
class Setup:
    """What a run is made of, before it has an engine.

    validation_stream:  None where no pairs are held out
    facts:              what run.json says: the run's identity (see config.identity), and what its release will say
    notes:              lines for the user
    """

    config: PretrainConfig
    folder: Path
    model: TrainedModel
    tokenizer: Any
    train_stream: PairStream
    validation_stream: PairStream | None
    layout: Layout
    rank: int
    total_steps: int
    schedule: Schedule
    deepspeed_settings: dict[str, Any]
    facts: dict[str, Any]
    notes: list[str]


def set_up(config: PretrainConfig) -> Setup:
    """Checks the settings, joins the other ranks, loads corpus and model, and claims the output folder.

    Raises KinspanError for anything that the user can mend.
    """
    check(config)
    sources = list_sources(config)
    mixture = build_mixture(config, sources)
    deepspeed_settings = read_deepspeed_config(config.deepspeed_config)
    precision = choose_precision(config.precision, zero_stage(deepspeed_settings))
    rank, local_rank, world_size = read_launcher_variables()
    if config.wandb and rank == 0:
        import_wandb(config.wandb)
    folder = open_folder(config.output_dir)
    notes = _note_defaults(config)
    _start_machine(config)

    model_name = config.model or default_model()
    tokenizer, family = make_first_on_each_machine(local_rank, lambda: _load_names(model_name, local_rank))
    corpora = make_first_on_each_machine(
        local_rank, lambda: open_corpora_for_tokenizer(tokenizer, sources, cache_settings(config))
    )
    mixture, dropped = drop_untrainable(mixture.read_from(*corpora))
    notes += dropped
    token_loss = choose_token_loss(config, model_name, family)
    masked = disable_unused_masking(config, token_loss)
    if masked.mlm_probability != config.mlm_probability:
        notes.append("--mlm_weight 0: no token is masked")
    model, model_notes = make_first_on_each_machine(
        local_rank, lambda: _load_model(config, model_name, token_loss, mixture)
    )
    fingerprint = fingerprint_once_per_machine(model, rank, local_rank)
    notes += model_notes + find_unused_flags(config, token_loss)
    if any(note.startswith("the masked-LM head") for note in model_notes):
        notes += warn_of_masked_lm(config)
    if not config.adapter and not holds_no_weights(model_name):
        notes += warn_of_rate("--learning_rate", config.learning_rate)
    max_length = config.max_length or mixture.max_length
    check_lengths(model, model_name, config.generator, tokenizer, max_length)
    if config.compile:
        check_can_compile(model.family, zero_stage(deepspeed_settings))

    train, validation, unvalidated = _open_streams(config, masked, token_loss, tokenizer, mixture, max_length)
    notes += unvalidated
    total = count_steps(config, train)
    schedule = plan_schedule(config, total, train.epoch_pairs)
    # On a GPU rows are padded inside attention in fp32, and where a family's own encode is used.
    padded = torch.cuda.is_available() and (model.family.encode is not None or precision == "fp32")
    micro = _settle_micro_batch(config, model, train, precision, zero_stage(deepspeed_settings), world_size)
    config, masked = (replace(one, micro_batch_size=micro) for one in (config, masked))
    layout = Layout(config.global_batch_size, micro, world_size, padded)
    facts = collect_facts(masked, fingerprint, model_name, deepspeed_settings, precision, mixture, max_length, total)
    facts["identity"]["corpus_content"] = identify_corpora(mixture, sources)
    facts |= describe_for_release(config, model_name, model, token_loss, mixture, corpora, validation)
    facts["warmup_steps"] = schedule.warmup
    setup = Setup(
        config=config,
        folder=folder,
        model=model,
        tokenizer=tokenizer,
        train_stream=train,
        validation_stream=validation,
        layout=layout,
        rank=rank,
        total_steps=total,
        schedule=schedule,
        deepspeed_settings=complete_settings(deepspeed_settings, config, layout, precision),
        facts=facts,
        notes=notes,
    )
    _check_same_everywhere(setup)
    broadcast_from_rank_0(lambda: _claim(setup))
    return setup


def _start_machine(config: PretrainConfig) -> None:
    """Joins the other ranks, and settles how numbers are computed."""
    start_distributed(config.allow_cpu)
    set_product_precision(config.tf32, config.deterministic)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads what it has not written


def _open_streams(
    config: PretrainConfig, masked: PretrainConfig, token_loss: str, tokenizer: Any, mixture: Mixture, max_length: int
) -> tuple[PairStream, PairStream | None, list[str]]:
    """The pairs to train on, those of validation where some are held out, and what is told of parts without them.

    masked: the settings of ``disable_unused_masking``
    """
    template = read_template(config, tokenizer)
    masking = make_masking(masked, token_loss, tokenizer)
    shared: dict[str, Any] = {"template": template, "max_length": max_length, "masking": masking}
    train = PairStream(mixture, seed=config.seed, split="train", permute_labels=config.permute_pair_labels, **shared)
    if not config.eval_pairs:
        return train, None, []
    try:
        validated, notes = mix_validation(mixture)
        return train, PairStream(validated, seed=VALIDATION_SEED, split="validation", **shared), notes
    except TooFewDocuments as error:
        return train, None, [f"no validation: what is held out gives no pairs ({error})"]


def _settle_micro_batch(
    config: PretrainConfig, model: TrainedModel, train: PairStream, precision: str, stage: int, world: int
) -> int:
    if config.micro_batch_size:
        return config.micro_batch_size
    folder = Path(config.output_dir)

    def read_kept() -> dict[str, Any]:
        under_way = (folder / RUN).exists() and any((folder / CHECKPOINTS).glob("step-*"))
        return read_object(folder / RUN, ADVICE).get("settings", {}) if under_way else {}

    kept = broadcast_from_rank_0(read_kept)
    share = math.ceil(config.global_batch_size / world)
    return kept.get("micro_batch_size") or choose_micro_batch(model, train, precision, stage, share)


def _check_same_everywhere(setup: Setup) -> None:
    """Raises KinspanError on all ranks where they read different settings or files on their machines.

    The parts of a batch would then not belong together.
    """
    steps = {"total_steps": setup.total_steps, "schedule": setup.schedule}
    settings = {name: getattr(setup.config, name) for name in MUST_MATCH_ACROSS_RANKS} | {
        "deepspeed": setup.deepspeed_settings
    }
    everyone = gather(setup.facts["identity"] | steps | settings)
    for rank, theirs in enumerate(everyone):
        for key, value in everyone[0].items():
            if theirs[key] != value:
                raise KinspanError(
                    f"rank {rank} would not train the same run as rank 0: its {key} is {shorten(theirs[key])}, not "
                    f"{shorten(value)}; all machines need the same corpus, settings and packages"
                )
    check_shared(setup.folder)


def _note_defaults(config: PretrainConfig) -> list[str]:
    notes = []
    if not config.corpus:
        notes.append("no --corpus given: it is the documentation of Python and of the pinned packages")
    if config.model is None:
        notes.append(f"no --model given: it is {DEFAULT_MODEL_NAME}")
    return notes


def choose_token_loss(config: PretrainConfig, model_name: str, family: str) -> str:
    """Either "mlm" or "rtd", or "none" for an adapter; "auto" is resolved by the model's family, but for a bi-encoder,
    which has no replaced-token detection.

    Raises KinspanError where they do not fit, or no loss has a weight.
    """
    if config.adapter:
        return "none"
    if config.pair_loss or config.token_loss == "mlm" or (config.token_loss == "auto" and family != "electra"):
        if not (config.pair_weight or config.mlm_weight):
            raise KinspanError("--pair_weight 0 with --mlm_weight 0 trains nothing: give one of them a weight")
        return "mlm"
    if family != "electra":
        raise KinspanError(f"--token_loss rtd needs an ELECTRA model, and --model {model_name} is of the type {family}")
    if config.rtd_weight and not config.mlm_probability:
        raise KinspanError(
            "--mlm_probability 0 leaves replaced-token detection nothing to find: to train on pairs alone, give "
            "--token_loss mlm too"
        )
    return "rtd"


def warn_of_masked_lm(config: PretrainConfig) -> list[str]:
    """A line where the loss of a new masked-LM head leaves the pair loss little say."""
    weight = config.mlm_weight if config.mlm_probability else 0.0
    if not config.pair_weight or weight < HEAVY_MASKED_LM * config.pair_weight:
        return []
    return [
        f"with --mlm_weight {config.mlm_weight:g} the loss of this new head outweighs the pair loss for thousands of "
        "updates: try 0.05 to 0.2"
    ]


def disable_unused_masking(config: PretrainConfig, token_loss: str) -> PretrainConfig:
    """The settings, without masked tokens where their loss has no weight: pairs are then read as they are."""
    nothing_to_learn = token_loss == "mlm" and not config.mlm_weight
    return replace(config, mlm_probability=0.0) if nothing_to_learn else config


def _load_names(model_name: str, local_rank: int) -> tuple[Any, str]:
    """The model's tokenizer and family. Only the first rank of a machine asks the hub for them, and for weights."""
    if local_rank:
        use_cache_alone()
    family = load_config(model_name).model_type  # first: a tokenizer of an unknown kind of model says less
    return tokenizers.load_tokenizer(model_name), family


def fingerprint_once_per_machine(model: TrainedModel, rank: int, local_rank: int) -> str:
    """Names the starting point by its content, hashed by the first rank of each machine.

    Raises KinspanError on all ranks where a machine has other weights than that of rank 0.
    """
    is_first = rank == 0 or local_rank == 0
    everyone = gather(fingerprint_weights(model, *_list_configs(model).values()) if is_first else None)
    for other, theirs in enumerate(everyone):
        if theirs not in (None, everyone[0]):
            raise KinspanError(
                f"rank {other} starts from other weights than rank 0: all machines need the same --model, packages "
                "and kind of processor"
            )
    return str(everyone[0])


def check_lengths(model: TrainedModel, model_name: str, generator_name: str, tokenizer: Any, max_length: int) -> None:
    """Whether the model, and its generator, embed the tokenizer's ids (unless it is None) and pairs of this length."""
    if tokenizer is not None and tokenizer.mask_token_id is None:
        raise KinspanError(f"--model {model_name}: its tokenizer has no mask token, which masked LM needs")
    names = {model.encoders[-1]: f"--model {model_name}"}
    if isinstance(model, ReplacedTokenModel):
        names[model.encoders[0]] = f"--generator {generator_name}"
    for encoder, name in names.items():
        check_fits(name, encoder, tokenizer, max_length)


def load_trained(
    config: PretrainConfig, model_name: str, token_loss: str, mixture: Mixture, load: Load = load_or_build
) -> tuple[TrainedModel, list[str]]:
    """Loads the model that these settings train, each part by ``load``; returns it, and lines that say what is new."""
    names, share = mixture.names, mixture.positive_share
    if config.pair_loss:
        temperature = config.temperature or TEMPERATURE
        return load_siamese_model(model_name, config.seed, names, temperature, config.symmetric, load)
    if token_loss == "mlm":
        return load_model(model_name, config.seed, names, share, load)
    return load_replaced_token_model(
        model_name, config.generator, config.embedding_sharing, config.seed, names, share, load
    )


def _load_model(
    config: PretrainConfig, model_name: str, token_loss: str, mixture: Mixture
) -> tuple[TrainedModel, list[str]]:
    if not config.adapter:
        return load_trained(config, model_name, token_loss, mixture)
    own, shape = Path(config.output_dir).resolve().name, (config.adapter, config.adapter_size, config.adapters)
    return load_adapter_model(model_name, *shape, own, config.seed, mixture.names, mixture.positive_share)


def read_template(config: ObjectiveSettings, tokenizer: Any) -> tokenizers.PairTemplate:
    """How the tokenizer joins the texts of a pair; for a bi-encoder how it encodes a text alone."""
    read = tokenizers.read_text_template if config.pair_loss else tokenizers.read_pair_template
    return read(tokenizer)


def make_masking(config: ObjectiveSettings, token_loss: str, tokenizer: Any) -> MaskedLM | None:
    """What chooses the tokens of the token loss; None where there is none.

    Raises KinspanError where it is to choose whole words, and the tokenizer does not show where words begin.
    """
    if token_loss == "none":
        return None
    words = tokenizers.find_continuations(tokenizer) if config.whole_word_masking else None
    masked = mask_for_generator if token_loss == "rtd" else MaskedLM
    return masked(tokenizer.mask_token_id, len(tokenizer), config.mlm_probability, words)


def count_steps(config: PretrainConfig, train: PairStream) -> int:
    """The number of updates that ``max_steps``, ``max_epochs`` or ``max_tokens`` comes to."""
    if config.max_epochs is not None:
        return math.ceil(config.max_epochs * train.epoch_pairs / config.global_batch_size)
    if config.max_tokens is not None:
        return math.ceil(config.max_tokens / (average_tokens(train) * config.global_batch_size))
    return config.max_steps or 1000


def plan_schedule(config: PretrainConfig, total: int, epoch_pairs: int = 0) -> Schedule:
    """The learning rate's schedule over ``total`` updates. Raises KinspanError where it does not fit into them.

    epoch_pairs: of an epoch. Where a run may be continued, the warm-up of epochs follows from them alone: ``total`` is
                 rounded up, and its share of an epoch differs between two lengths
    """
    warmup, given = config.warmup_steps, None
    if config.warmup_epochs is not None and config.max_epochs is not None:
        warmup = round(total * config.warmup_epochs / config.max_epochs)
        if config.lr_schedule in OPEN_ENDED:
            warmup = round(config.warmup_epochs * epoch_pairs / config.global_batch_size)
        given = f"--warmup_epochs {config.warmup_epochs:g} ({warmup} steps)"
    return make_schedule(config, config.learning_rate, total, warmup, given=given)


def _claim(setup: Setup) -> None:
    """Makes the output folder this run's, with what its release needs beside weights, or finds that it is already."""
    is_new = claim_folder(setup.folder, setup.facts, explain_differences(setup, setup.folder))
    if is_new:
        shutil.rmtree(setup.folder / "releases", ignore_errors=True)  # of settings that never came to a checkpoint
        shutil.rmtree(setup.folder / GENERATOR_FOLDER, ignore_errors=True)
        for name, model_config in _list_configs(setup.model).items():
            (setup.folder / name).mkdir(exist_ok=True)
            model_config.to_json_file(str(setup.folder / name / "config.json"), use_diff=False)
        setup.tokenizer.save_pretrained(str(setup.folder / MODEL_FOLDER))
    if isinstance(setup.model, AdapterModel):  # at every start: its base may have moved
        keep_adapter(setup.model, setup.folder, setup.facts["model"]["name"], setup.config.model)
    if not is_new:
        change_length(setup.folder, setup.facts, setup.schedule)
        _note_validation(setup)


def _note_validation(setup: Setup) -> None:
    """Keeps in run.json on how much a run under way is validated from now on, which may change; its card says it."""
    record = read_object(setup.folder / RUN, ADVICE)
    now = {name: setup.facts[name] for name in ("eval_pairs", "validation_documents")}
    if record | now != record and not (setup.folder / SUMMARY).exists():
        write_atomically(setup.folder / RUN, json.dumps(record | now, indent=1) + "\n")


def explain_differences(setup: Setup, folder: Path) -> dict[str, str]:
    """What to say where a folder holds a run of another identity, by its keys; see run_folder.holds_this_run."""
    edited = f"the code of {setup.config.objective} was edited since: undo the edit, or choose another --output_dir"
    longer = dict.fromkeys(LENGTHS, f"let it finish as it is; {advise(folder)}")
    others = explain_other_corpora(folder, as_dict(setup.config)["corpus"])
    return {"own_objectives": edited, **explain_base(folder, setup.facts), **others, **longer}


def _list_configs(model: TrainedModel) -> dict[str, Any]:
    if isinstance(model, ReplacedTokenModel):
        return {MODEL_FOLDER: model.config, GENERATOR_FOLDER: model.generator.config}
    return {MODEL_FOLDER: model.config}
