"""The settings of a pre-training run; planning/checks.py checks how they are combined."""

from dataclasses import asdict, dataclass
from typing import Literal

from data_pipeline.core.errors import KinspanError, redact
from data_pipeline.core.files import JsonObject
from data_pipeline.core.settings import (
    ABOVE_0,
    FROM_0_TO_BELOW_1,
    NOT_BELOW_0,
    SEEDS,
    WORKERS,
    CacheFlags,
    convert_setting,
    setting,
)
from pretrain.engine.schedule import GuardSettings, OptimizerSettings

LENGTHS = ("max_steps", "max_epochs", "max_tokens")  # a run may set one of these
RESUMABLE = (  # what --resume_with may change
    *(*LENGTHS, "learning_rate", "lr_schedule", "decay_share", "warmup_steps", "max_grad_norm"),
    *("mlm_weight", "rtd_weight", "pair_weight"),
)
# Settings that --resume_with unsets before it sets one of these.
REPLACED = {**dict.fromkeys(LENGTHS, LENGTHS), "warmup_steps": ("warmup_epochs",)}
# These may change, but must be equal on all ranks, because the order of collectives depends on them.
MATCH_ACROSS_RANKS = ("micro_batch_size", "max_skipped_steps", "eval_pairs", "eval_steps", "save_steps", "log_steps")
VALIDATION_SEED = 0  # seed of validation's order, spans and masks, in all runs, so that they can be compared


@dataclass
class DataSettings(CacheFlags):
    """Selects the corpora, and sets how pairs are drawn from them."""

    GROUP = "data"

    corpus: list[str] = setting([], may_change=True)
    """Corpus folder, written by kinspan prepare, or the address of a remote copy such as s3://bucket/wiki. Several are
    mixed: PATH=WEIGHT PATH=WEIGHT,OBJECTIVE ..., where weights are relative (3 and 1 mean the same as 0.75 and 0.25),
    and OBJECTIVE replaces --objective. Without it: the documentation of Python and of the pinned packages."""
    corpus_schedule: Literal["round_robin"] | None = setting(None)
    """round_robin: each batch comes from one corpus (and one of its objectives), in turn, whatever their sizes; weight
    2 means two turns. An epoch then has the batches of all corpora, with at most 100,000 positives from each.
    Without it: every batch mixes pairs of all corpora by their weights."""
    forums: str | None = setting(None)
    """Which of the --corpus folders to use: balanced (18 StackExchange forums of six categories), largest (the 18
    largest), all (except those of the benchmarks), or names with commas (beer,physics). Without it: all folders."""
    min_questions: int | None = setting(None, NOT_BELOW_0)
    """Leave out corpora with fewer documents than this."""
    sampling: Literal["matched", "paper"] = setting("matched")
    """How long negatives are: matched to the positive, or drawn freely as in the paper (their length then gives the
    label away)."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum tokens in a pair. Without it: the objective's default (ssp: 128); for a mixture the smallest of these."""


@dataclass
class ModelSettings:
    """Selects the base model, and the weights that are trained."""

    GROUP = "model"

    model: str | None = setting(None, may_change=True, is_model=True)
    """Where training starts: a weights folder, a hub name (roberta-base), or a folder with only config and tokenizer
    (then from scratch). Without it: all-MiniLM-L6-v2, which is installed with this package."""
    generator: str = setting("1/3", may_change=True, is_model=True)
    """For rtd: the generator's weights folder or hub name; or its size relative to --model, such as 1/3 or 0.25, and
    then it starts from scratch."""
    embedding_sharing: Literal["none", "tied", "disentangled"] = setting("tied")
    """For rtd: generator and discriminator each have their own embeddings (none); they share them (tied); or the
    discriminator uses the generator's word table, which its loss does not change, plus a difference that it learns
    (disentangled)."""
    adapter: Literal["pfeiffer", "lora", "fusion"] | None = setting(None)
    """Train an adapter beside the frozen --model, and the pair head, by the sentence-level loss alone: a bottleneck in
    every layer (pfeiffer), LoRA of queries and values (lora; needs the package peft), or attention over the
    bottlenecks of --adapters (fusion). Checkpoints and releases hold only these few megabytes, not the model."""
    adapter_size: int | None = setting(None, ABOVE_0, needs="adapter")
    """Width of the bottleneck (default: 64), or rank of LoRA (default: 8)."""
    adapters: list[str] = setting([], may_change=True, needs="adapter")
    """Folders of released adapters of this --model, which a fusion combines and leaves frozen."""


@dataclass
class ObjectiveSettings:
    """Selects the objectives and the weights of their losses."""

    GROUP = "objective"

    objective: str = setting("ssp")
    """Sentence-level objective: ssp (do two spans come from the same paragraph?), sp (does a span come from this
    paragraph?), psd (do two paragraphs come from the same document?), nsp, sop, ict; for titled documents
    title_sentence; for questions title_body, title_answer, question_answer, duplicate, duplicate_question; a mixture
    with whole-number weights such as ssp:2+sp:1+psd:1; all (ssp+sp+psd); or your own as my_module:my_objective."""
    token_loss: Literal["auto", "mlm", "rtd"] = setting("auto")
    """mlm is masked language modelling; rtd is ELECTRA's replaced-token detection, which also trains a generator; auto
    chooses rtd for ELECTRA models and mlm for all others."""
    mlm_weight: float | None = setting(None, NOT_BELOW_0)
    """Weight of the masked-LM loss. Default: 1; but 0.05 beside a pair loss if the masked-LM head starts fresh, as
    all-MiniLM-L6-v2's does, since its loss would drown the pair loss for thousands of updates."""
    rtd_weight: float = setting(50.0, NOT_BELOW_0)
    """Weight of the replaced-token loss."""
    pair_weight: float = setting(1.0, NOT_BELOW_0)
    """Weight of the sentence-level loss; with 0 only the token loss is trained."""
    pair_loss: Literal["contrastive"] | None = setting(None)
    """contrastive: train a bi-encoder. Each text is encoded alone, as the mean of its tokens; among the texts B of the
    global batch, the one that belongs to A must be the most similar. A pair is then an anchor and its positive. Without
    it: a cross-encoder, which reads A and B together and tells positives from negatives."""
    temperature: float | None = setting(None, ABOVE_0, needs="pair_loss")
    """For contrastive: cosines are divided by this; default: 0.05."""
    own_negatives: int | None = setting(None, ABOVE_0, needs="pair_loss")
    """For contrastive: add this many of the objective's negatives for each anchor to the texts B, hard ones first.
    Without it: none."""
    permute_pair_labels: bool = setting(False)
    """A control for studies: permute the labels among each anchor's pairs, so that the pair loss is trained on
    labels without meaning. Validation, and the accuracies and F1 in the log, use the true labels."""
    mlm_probability: float = setting(0.15, FROM_0_TO_BELOW_1)
    """Share of tokens chosen for the token loss. 0: none; then only pairs are trained, on unmasked texts."""
    whole_word_masking: bool = setting(False)
    """Choose whole words for the token loss, not single tokens."""


@dataclass
class OptimisationSettings(OptimizerSettings):
    """Sets the length, the rate and the precision of training."""

    GROUP = "optimisation"

    max_steps: int | None = setting(None, ABOVE_0)
    """Number of updates. Default: 1000, if neither epochs nor tokens are given."""
    max_epochs: float | None = setting(None, ABOVE_0)
    """Instead of --max_steps: how many times every anchor paragraph is used."""
    max_tokens: int | None = setting(None, ABOVE_0)
    """Instead of --max_steps: number of tokens; it is converted to updates by the mean length of the first pairs."""
    learning_rate: float = setting(1e-4, NOT_BELOW_0)
    """Peak learning rate, see --lr_schedule."""
    warmup_steps: int | None = setting(None, NOT_BELOW_0)
    """Updates until the peak. Default: a tenth of all updates; with wsd and constant: 50."""
    warmup_epochs: float | None = setting(None, ABOVE_0)
    """Instead of --warmup_steps, with --max_epochs: number of epochs in which the rate rises."""
    deepspeed_config: str = setting("ds_configs/zero1.json", may_change=True)
    """DeepSpeed's JSON file: one of ds_configs/zero0.json to zero3.json, ds_configs/offload.json, or your own."""
    seed: int = setting(1, SEEDS)
    """Seed of everything random: order, spans, masks, dropout, new weights."""
    compile: bool = setting(False, may_change=True)
    """Compile the encoder with torch.compile, on GPUs; not with ZeRO 3. Losses differ only by rounding and the
    random numbers of dropout."""
    tf32: bool = setting(True, may_change=True)
    """Multiply fp32 matrices in TF32 (10 bits of mantissa) on GPUs that have it, at up to eight times the speed; off
    with --deterministic. Only matters with --precision fp32."""
    deterministic: bool = setting(False, may_change=True)
    """Use only algorithms that give the same bits every time. They are slower on a GPU; on a CPU nothing changes."""


@dataclass
class BatchSettings:
    """Sets how the pairs of an update are divided."""

    GROUP = "batches"

    global_batch_size: int = setting(64, ABOVE_0)
    """Pairs in one update, over all ranks."""
    micro_batch_size: int | None = setting(None, ABOVE_0, may_change=True)
    """Pairs in one forward pass of one rank; gradient accumulation follows from it. Default: 32 on a CPU; on a GPU as
    many as its memory holds with a reserve, measured once per run. Micro-batches are cut to near-equal tokens, and so
    have a few pairs more or less. When it changes, gradients differ only by rounding and, on a GPU, by the random
    numbers of dropout."""
    num_workers: int = setting(1, WORKERS, may_change=True)
    """Threads per rank that prepare batches ahead. The batches do not depend on it."""


@dataclass
class ValidationSettings:
    """Sets when and on how much the model is validated."""

    GROUP = "validation"

    eval_steps: int = setting(100, ABOVE_0, may_change=True)
    """Validate on held-out documents every this many updates, and at the end."""
    eval_pairs: int = setting(1000, NOT_BELOW_0, may_change=True)
    """Held-out pairs to validate on, the same every time; 0: none."""


@dataclass
class CheckpointSettings:
    """Sets where the run writes to, which checkpoints are kept, and when it stops."""

    GROUP = "checkpoints"

    output_dir: str = setting("runs/ssp", may_change=True)
    """Folder that the run writes to. The same command again resumes what is there."""
    resume_with: list[str] = setting([], may_change=True)
    """SETTING=VALUE ...: resume with another max_steps, learning_rate, lr_schedule, warmup_steps or loss weight, also a
    run that has ended. run.json and the card record the change. The run then no longer equals an uninterrupted one."""
    save_steps: int = setting(100, ABOVE_0, may_change=True)
    """Write a checkpoint every this many updates, and at the end."""
    keep_checkpoints: int = setting(2, ABOVE_0, may_change=True)
    """Number of newest checkpoints to keep."""
    keep_every: int = setting(0, NOT_BELOW_0, may_change=True)
    """Also keep for good the checkpoints of steps that are a multiple of this; 0: none."""
    async_checkpoints: bool | None = setting(None, may_change=True)
    """true: training continues while a checkpoint is written, from a copy in host memory; false: training waits, which
    is cheaper if the same cores write and train. Default: true on GPUs."""
    max_hours: float | None = setting(None, ABOVE_0, may_change=True)
    """Stop after this many hours, and at least one update, with a checkpoint and exit status 75, as on a signal: for
    the time limit of a batch queue."""


@dataclass
class MonitoringSettings(GuardSettings):
    """Sets what is logged, and when a failing run ends."""

    GROUP = "monitoring"

    log_steps: int = setting(10, ABOVE_0, may_change=True)
    """Log every this many updates."""
    peak_tflops: float | None = setting(None, ABOVE_0, may_change=True)
    """Peak TFLOP/s of one device, for the model FLOP utilisation. Without it: looked up for known GPUs."""
    profile: int = setting(0, NOT_BELOW_0, may_change=True)
    """Trace this many steps, after the first four, with torch.profiler: prints the slowest operators and writes
    trace.json.gz to the output folder."""
    wandb: str | None = setting(None, may_change=True)
    """Also log to this project of Weights & Biases; the package wandb must be installed.
    WANDB_MODE=offline keeps the figures in the output folder."""
    dry_run: bool = setting(False, may_change=True)
    """Print what these settings would do (tokens, memory, time), and stop."""
    tokens_per_second: float | None = setting(None, ABOVE_0, may_change=True, used_with="dry_run")
    """For --dry_run: tokens per second of all ranks together, from which the hours are computed."""
    network_gb_per_s: float = setting(25.0, ABOVE_0, may_change=True, used_with="dry_run")
    """For --dry_run: GB/s that a machine of 8 GPUs sends to others, by all its network cards together."""


@dataclass
class PretrainConfig(
    MonitoringSettings,
    CheckpointSettings,
    ValidationSettings,
    BatchSettings,
    OptimisationSettings,
    ObjectiveSettings,
    ModelSettings,
    DataSettings,
):
    """Settings of ``kinspan pretrain``. Only those with ``may_change`` may change when a run resumes.

    The bases are in reverse order, because dataclasses put the fields of the last one first.
    """

    BASIC = (  # what --help shows
        *("corpus", "model", "objective", "mlm_weight", "output_dir", "max_steps", "learning_rate", "max_length"),
        *("global_batch_size", "micro_batch_size", "precision", "eval_steps", "dry_run"),
    )

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            setattr(self, name, convert_setting(type(self), name, value))
        for text in self.resume_with:
            name, _, value = text.partition("=")
            if name not in RESUMABLE:
                raise KinspanError(f"--resume_with {text}: write SETTING=VALUE, of {', '.join(RESUMABLE)}")
            for other in REPLACED.get(name, ()):
                setattr(self, other, None)
            setattr(self, name, convert_setting(type(self), name, value))

    def list_resumed(self) -> list[str]:
        """Returns the settings that --resume_with changes, with those that they replace."""
        names = {text.partition("=")[0] for text in self.resume_with}
        names |= {other for name in names for other in REPLACED.get(name, ())}
        return [*names, *(LENGTHS if "lr_schedule" in names else ())]


def as_dict(config: PretrainConfig) -> JsonObject:
    """Returns the settings for config.yaml and the summary, without those of one start only and without secrets."""
    transient = ("local_rank", "dry_run", "tokens_per_second", "network_gb_per_s", "profile", "resume_with")
    settings = asdict(config) | {"corpus": list(map(redact, config.corpus))}
    return {name: value for name, value in settings.items() if name not in transient}
