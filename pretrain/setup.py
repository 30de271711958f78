"""Sets up a run, except for its engine, and makes every check that needs none."""

import logging
import math
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from huggingface_hub import constants
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from data_pipeline import tokenizers
from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import PROJECT_ROOT, JsonObject, read_object
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.order import TooFewDocuments
from data_pipeline.sampling.stream import PairStream
from objectives.mlm import MaskedLM
from objectives.rtd import mask_for_generator
from pretrain.engine import run_folder
from pretrain.engine.deepspeed_config import read_deepspeed_config, zero_stage
from pretrain.engine.device import DTYPES, choose_precision
from pretrain.engine.engine import HIGH_RATE, complete_settings, start_distributed
from pretrain.engine.layout import Layout
from pretrain.engine.ranks import broadcast_from_rank_0, gather, make_first_on_each_machine
from pretrain.engine.schedule import OPEN_ENDED, Schedule, make_schedule
from pretrain.engine.world import read_launcher_variables
from pretrain.modeling.adapters.model import AdapterModel, load_adapter_model
from pretrain.modeling.compilation import check_can_compile
from pretrain.modeling.electra import ReplacedTokenModel, load_replaced_token_model
from pretrain.modeling.encoder import pads_sequences
from pretrain.modeling.limits import check_fits
from pretrain.modeling.pair_model import (
    Load,
    fingerprint_weights,
    holds_no_weights,
    load_config,
    load_model,
    load_or_build,
)
from pretrain.modeling.siamese.model import TEMPERATURE, load_siamese_model
from pretrain.planning.corpora import (
    build_mixture,
    drop_untrainable,
    list_sources,
    mix_validation,
    open_corpora_for_tokenizer,
)
from pretrain.release.adapter import ADAPTER_FOLDER, keep_adapter
from pretrain.release.folder import refuse_unwritable
from pretrain.release.release import GENERATOR_FOLDER, MODEL_FOLDER

from .batches import TrainedModel, average_tokens, choose_micro_batch
from .config import MATCH_ACROSS_RANKS, VALIDATION_SEED, ObjectiveSettings, PretrainConfig
from .facts import collect_facts
from .lengthen import change_length, check_resumption, note_changes
from .planning.checks import check, find_unused_flags

log = logging.getLogger(__name__)
FRESH_MLM_WEIGHT = 0.05  # of a fresh head, whose loss of 10 would outweigh a pair loss of 0.7


@dataclass(kw_only=True)
class Setup:
    """A run without its engine.

    validation_stream:  None if no pairs are held out
    facts:              content of run.json: the run's identity, and facts for its release
    """

    config: PretrainConfig
    folder: Path
    model: TrainedModel
    tokenizer: PreTrainedTokenizerBase
    train_stream: PairStream
    validation_stream: PairStream | None
    layout: Layout
    rank: int
    schedule: Schedule
    deepspeed_settings: JsonObject
    facts: JsonObject


def begin(config: PretrainConfig) -> Path:
    """Checks the settings, joins the other ranks, and opens the output folder, which it returns."""
    check(config)
    start_distributed()
    num_gpus, program = torch.cuda.device_count(), Path(sys.argv[0]).name
    if num_gpus > 1 and read_launcher_variables()[2] == 1 and "pretrain" in program:
        command = f"deepspeed {PROJECT_ROOT / 'launch/pretrain.py'} {shlex.join(sys.argv[1:])}"
        log.info("one of %d GPUs is used; for all of them: %s", num_gpus, command)
    return run_folder.open_folder(config.output_dir)


def set_up(config: PretrainConfig) -> Setup:
    """Loads corpus and model, and claims the output folder. Called after ``begin``."""
    config = keep_mlm_weight(config)
    sources = list_sources(config)
    mixture = build_mixture(config, sources)
    deepspeed_settings = read_deepspeed_config(config.deepspeed_config)
    stage = zero_stage(deepspeed_settings)
    precision = choose_precision(config.precision, stage)
    rank, local_rank, world_size = read_launcher_variables()
    _set_numerics(config)

    model_name = config.model or default_model()
    tokenizer, family = make_first_on_each_machine(local_rank, lambda: _load_tokenizer(model_name, local_rank))
    corpora = make_first_on_each_machine(
        local_rank, lambda: open_corpora_for_tokenizer(tokenizer, sources, config.cache)
    )
    mixture, notes = drop_untrainable(mixture.read_from(*corpora))
    token_loss = choose_token_loss(config, model_name, family)
    model, new_parts = make_first_on_each_machine(
        local_rank, lambda: load_trained(config, model_name, token_loss, mixture)
    )
    fingerprint = fingerprint_once_per_machine(model, local_rank)
    notes += [*new_parts, *find_unused_flags(config, token_loss)]
    if config.mlm_weight is None:
        is_fresh = config.pair_weight and any(part.startswith("the masked-LM head") for part in new_parts)
        config = replace(config, mlm_weight=FRESH_MLM_WEIGHT if is_fresh and token_loss == "mlm" else 1.0)
        notes += [f"--mlm_weight {config.mlm_weight:g}, as that head starts fresh"] if config.mlm_weight != 1 else []
    max_length = config.max_length or mixture.max_length
    check_lengths(model, model_name, config.generator, tokenizer, max_length)
    if config.compile:
        check_can_compile(model.family, stage)

    template = tokenizers.read_template(tokenizer, alone=bool(config.pair_loss))
    masking = make_masking(disable_unused_masking(config, token_loss), token_loss, tokenizer)
    open_stream = partial(PairStream, template=template, max_length=max_length, masking=masking)
    train = open_stream(mixture, seed=config.seed, split="train", permute_labels=config.permute_pair_labels)
    validation = None
    if config.eval_pairs:
        try:
            validation_mixture, left_out = mix_validation(mixture)
            validation = open_stream(validation_mixture, seed=VALIDATION_SEED, split="validation")
            notes += left_out
            if (count := validation.epoch_pairs) < config.eval_pairs:
                notes.append(f"--eval_pairs {config.eval_pairs:,}: held-out text suffices for {count:,} pairs")
        except TooFewDocuments as error:
            notes.append(f"no validation: held-out documents give no pairs ({error})")
    schedule = plan_schedule(config, count_steps(config, train), train.epoch_pairs)
    padded = any(pads_sequences(encoder, DTYPES[precision]) for encoder in model.encoders)
    share = math.ceil(config.global_batch_size / world_size)
    micro = config.micro_batch_size or broadcast_from_rank_0(partial(_read_settings, config)).get("micro_batch_size")
    micro = micro or choose_micro_batch(model, train, precision, stage, share)
    config = replace(config, micro_batch_size=micro)
    layout = Layout(config.global_batch_size, micro, world_size, padded)
    of_model = model_name, model, fingerprint, deepspeed_settings, precision, token_loss
    facts = collect_facts(config, *of_model, sources, corpora, train, validation, schedule)
    setup = Setup(
        config=config,
        folder=Path(config.output_dir),
        model=model,
        tokenizer=tokenizer,
        train_stream=train,
        validation_stream=validation,
        layout=layout,
        rank=rank,
        schedule=schedule,
        deepspeed_settings=complete_settings(deepspeed_settings, config.max_grad_norm, layout, precision),
        facts=facts,
    )
    _check_same_on_all_ranks(setup)
    broadcast_from_rank_0(lambda: _claim(setup))
    for note in notes:
        log.info("%s", note)
    _warn(config, model_name)
    return setup


def _warn(config: PretrainConfig, model_name: str) -> None:
    """Logs which defaults are used, and warns of settings that are probably mistakes."""
    if not config.corpus:
        log.info("no --corpus: using the documentation of Python and of the pinned packages")
    if config.model is None:
        log.info("no --model: using %s", DEFAULT_MODEL_NAME)
    if config.learning_rate >= HIGH_RATE and not config.adapter and not holds_no_weights(model_name):
        log.warning("--learning_rate %g is high for a pre-trained encoder: 1e-4 is usual", config.learning_rate)


def _set_numerics(config: PretrainConfig) -> None:
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high" if config.tf32 and not config.deterministic else "highest")
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no code reads it


def keep_mlm_weight(config: PretrainConfig) -> PretrainConfig:
    """Returns the settings with the masked-LM weight of the run to resume: the default follows from the pair weight,
    which ``--resume_with`` may change.
    """
    if not config.resume_with or config.mlm_weight is not None:
        return config
    return replace(config, mlm_weight=broadcast_from_rank_0(partial(_read_settings, config)).get("mlm_weight"))


def _read_settings(config: PretrainConfig) -> JsonObject:
    """Returns the settings of the run in the output folder if it has checkpoints, else none."""
    folder = Path(config.output_dir)
    under_way = (folder / run_folder.RUN).exists() and any((folder / run_folder.CHECKPOINTS).glob("step-*[0-9]"))
    return read_object(folder / run_folder.RUN, run_folder.ADVICE).get("settings", {}) if under_way else {}


def _check_same_on_all_ranks(setup: Setup) -> None:
    """Raises KinspanError on all ranks if the settings or files of any rank differ from rank 0's."""
    settings = {name: getattr(setup.config, name) for name in MATCH_ACROSS_RANKS}
    settings |= {"schedule": setup.schedule, "deepspeed": setup.deepspeed_settings}
    all_facts = gather(setup.facts["identity"] | settings)
    for rank, facts in enumerate(all_facts):
        for key, value in all_facts[0].items():
            if facts[key] != value:
                raise KinspanError(f"rank {rank} would train another run: its {key} is {facts[key]}, not {value}")
    run_folder.check_shared(setup.folder)


def choose_token_loss(config: PretrainConfig, model_name: str, family: str) -> str:
    """Returns "mlm", "rtd" or for an adapter "none"; "auto" is rtd for cross-encoders of ELECTRA's family."""
    if config.adapter:
        return "none"
    if config.pair_loss or config.token_loss == "mlm" or (config.token_loss == "auto" and family != "electra"):
        if not config.pair_weight and config.mlm_weight == 0:
            raise KinspanError("--pair_weight 0 with --mlm_weight 0 trains nothing: give one of them a weight")
        return "mlm"
    if family != "electra":
        raise KinspanError(f"--token_loss rtd needs an ELECTRA model, and --model {model_name} is of the type {family}")
    if config.rtd_weight and not config.mlm_probability:
        raise KinspanError("--mlm_probability 0 leaves replaced-token detection nothing to find: give --token_loss mlm")
    return "rtd"


def disable_unused_masking(config: PretrainConfig, token_loss: str) -> PretrainConfig:
    """Sets mlm_probability to 0 when mlm_weight is 0."""
    return replace(config, mlm_probability=0.0) if token_loss == "mlm" and config.mlm_weight == 0 else config


def _load_tokenizer(model_name: str, local_rank: int) -> tuple[PreTrainedTokenizerBase, str]:
    """Returns the tokenizer and family of the model; only the first rank of a machine asks the hub."""
    if local_rank:
        constants.HF_HUB_OFFLINE = True
    family = load_config(model_name).model_type  # first, because its error for an unknown kind of model is clearer
    return tokenizers.load_tokenizer(model_name), family


def fingerprint_once_per_machine(model: TrainedModel, local_rank: int) -> str:
    """Returns a hash of the initial weights, computed by each machine's first rank; they must be equal."""
    fingerprints = gather(None if local_rank else fingerprint_weights(model, *_list_configs(model).values()))
    for index, fingerprint in enumerate(fingerprints):
        if fingerprint not in (None, fingerprints[0]):
            raise KinspanError(f"--model: rank {index} starts from other weights than rank 0")
    return str(fingerprints[0])


def check_lengths(
    model: TrainedModel,
    model_name: str,
    generator_name: str,
    tokenizer: PreTrainedTokenizerBase | None,
    max_length: int,
) -> None:
    """Raises KinspanError unless model and generator can embed the tokenizer's ids and pairs of this length."""
    if tokenizer is not None and tokenizer.mask_token_id is None:
        raise KinspanError(f"--model {model_name}: its tokenizer has no mask token")
    names = {model.encoders[-1]: f"--model {model_name}"}
    if isinstance(model, ReplacedTokenModel):
        names[model.encoders[0]] = f"--generator {generator_name}"
    for encoder, name in names.items():
        check_fits(name, encoder, tokenizer, max_length)


def load_trained(
    config: PretrainConfig, model_name: str, token_loss: str, mixture: Mixture, load: Load = load_or_build
) -> tuple[TrainedModel, list[str]]:
    """Loads the model that these settings train, each part by ``load``; returns it, and notes on parts that are new."""
    names, share = mixture.names, mixture.positive_share
    if config.adapter:
        name, shape = Path(config.output_dir).resolve().name, (config.adapter, config.adapter_size, config.adapters)
        return load_adapter_model(model_name, *shape, name, config.seed, names, share)
    if config.pair_loss:
        temperature = config.temperature or TEMPERATURE
        return load_siamese_model(model_name, config.seed, names, temperature, load)
    if token_loss == "mlm":
        return load_model(model_name, config.seed, names, share, load)
    return load_replaced_token_model(
        model_name, config.generator, config.embedding_sharing, config.seed, names, share, load
    )


def make_masking(config: ObjectiveSettings, token_loss: str, tokenizer: PreTrainedTokenizerBase) -> MaskedLM | None:
    """Returns the masking for the token loss, if any. Raises KinspanError if the tokenizer cannot mask whole words."""
    if token_loss == "none":
        return None
    continuations = tokenizers.find_continuations(tokenizer) if config.whole_word_masking else None
    make = mask_for_generator if token_loss == "rtd" else MaskedLM
    return make(tokenizer.mask_token_id, len(tokenizer), config.mlm_probability, continuations)


def count_steps(config: PretrainConfig, train: PairStream | None, pair_tokens: int = 0) -> int:
    """Returns the number of updates. ``pair_tokens``: tokens of a pair, if a corpus is missing and so ``train`` too"""
    if config.max_epochs is not None:
        if train is None:
            raise KinspanError(f"--max_epochs {config.max_epochs}: the corpus is missing")
        return math.ceil(round(config.max_epochs * train.epoch_pairs / config.global_batch_size, 6))  # .07 of 100 is 7
    if config.max_tokens is not None:
        tokens = pair_tokens if train is None else average_tokens(train)
        return math.ceil(config.max_tokens / (tokens * config.global_batch_size))
    return config.max_steps or 1000


def plan_schedule(config: PretrainConfig, total: int, epoch_pairs: int = 0) -> Schedule:
    """Returns the learning rate's schedule over ``total`` updates. Raises KinspanError if the warm-up is too long."""
    warmup, flag = config.warmup_steps, None
    if config.warmup_epochs is not None and config.max_epochs is not None:
        warmup = round(total * config.warmup_epochs / config.max_epochs)
        if config.lr_schedule in OPEN_ENDED:  # it must not depend on ``total``, which is rounded up
            warmup = round(config.warmup_epochs * epoch_pairs / config.global_batch_size)
        flag = f"--warmup_epochs {config.warmup_epochs:g}"
    return make_schedule(config, config.learning_rate, total, warmup, flag=flag)


def _claim(setup: Setup) -> None:
    """Claims the output folder and writes configs and tokenizer to it, unless it already is this run's."""
    if setup.facts["changed"]:
        check_resumption(setup.folder, setup.facts, setup.schedule)
    is_new = run_folder.claim_folder(setup.folder, setup.facts)
    with refuse_unwritable(setup.folder):
        _write_configs(setup, is_new)
    if not is_new:
        if note_changes(setup.folder, setup.facts):
            log.info("--resume_with: %s", setup.facts["history"][-1])
            (setup.folder / run_folder.SUMMARY).unlink(missing_ok=True)  # it is no longer complete
        if not setup.facts["changed"]:
            change_length(setup.folder, setup.facts, setup.schedule)
        if not (setup.folder / run_folder.SUMMARY).exists():  # settings with may_change may have changed
            run_folder.write_record(setup.folder, setup.facts)


def _write_configs(setup: Setup, is_new: bool) -> None:
    if is_new:
        for name in (GENERATOR_FOLDER, ADAPTER_FOLDER):  # left by a run without a checkpoint
            shutil.rmtree(setup.folder / name, ignore_errors=True)
        for name, model_config in _list_configs(setup.model).items():
            (setup.folder / name).mkdir(exist_ok=True)
            model_config.to_json_file(str(setup.folder / name / "config.json"), use_diff=False)
        setup.tokenizer.save_pretrained(str(setup.folder / MODEL_FOLDER))
    if isinstance(setup.model, AdapterModel):  # at every start: its base may have moved
        keep_adapter(setup.model, setup.folder, setup.facts["model"]["name"], setup.config.model)


def _list_configs(model: TrainedModel) -> dict[str, PretrainedConfig]:
    if isinstance(model, ReplacedTokenModel):
        return {MODEL_FOLDER: model.config, GENERATOR_FOLDER: model.generator.config}
    return {MODEL_FOLDER: model.config}
