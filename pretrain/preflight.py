"""Checks all hosts before a long run: differences between them, disk space, the network, and two training steps."""

import faulthandler
import hashlib
import logging
import shutil
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from data_pipeline.core.default_model import list_versions
from data_pipeline.core.errors import KinspanError, redact
from data_pipeline.core.files import PROJECT_ROOT
from data_pipeline.corpus import Corpus
from data_pipeline.sources import is_url, list_paths
from pretrain.batches import make_micro_batches
from pretrain.checkpoints.reader import get_step, list_checkpoints
from pretrain.config import PretrainConfig
from pretrain.engine import ranks
from pretrain.engine.device import refuse_out_of_memory
from pretrain.engine.engine import build_engine, start_distributed
from pretrain.engine.log import format_time
from pretrain.engine.run_folder import CHECKPOINTS, SHARED, open_folder
from pretrain.engine.world import read_launcher_variables
from pretrain.lengthen import check_resumption
from pretrain.modeling.compilation import compile_encoders
from pretrain.modeling.losses import LossWeights
from pretrain.planning.checks import check
from pretrain.planning.corpora import list_sources
from pretrain.setup import Setup, keep_mlm_weight, set_up
from pretrain.step import OUT_OF_MEMORY, start_count_reduction, train_step, try_largest

logger = logging.getLogger(__name__)
TIME_LIMIT = 900.0  # seconds for all checks: loading a model from the hub, or compiling, takes minutes
SOURCES = ("data_pipeline", "objectives", "pretrain", "finetune", "launch")
PER_HOST = ("cache_dir", "local_rank")  # settings that may differ between hosts or ranks
MIN_DISK_SPACE = 1.0  # GB that must be free where --output_dir is
# NCCL and gloo use about 10 MB per pair of ranks; a container has 64 MB unless --shm-size asks for more.
MIN_SHARED_MEMORY = 0.512  # GB
CHECKPOINT_BYTES = (18, 20)  # for each trained parameter, without and with fp32
MIN_FREE_SHARE = 0.9  # of a GPU's memory: on an unused GPU only the driver's context takes some
NUM_REDUCED = 1 << 20  # numbers in the timed all-reduce
# A gigabit port carries 118 MB/s; one that a bad cable limits to 100 Mbit/s carries 12.
MIN_RATE = 30.0  # MB/s


@dataclass(frozen=True)
class HostFacts:
    """Describes a rank and its host: values that must be the same everywhere, and problems of this host."""

    host: str
    shared: dict[str, str]
    problems: list[str]


@ranks.report_failures()
def preflight(config: PretrainConfig) -> list[str]:
    """Returns the problems found, one line each, with the host; all ranks call it, and get the same list.

    Leaves the output folder as it was. Raises KinspanError for invalid settings. After ``TIME_LIMIT`` the process
    prints its stacks and ends.
    """
    output = Path(config.output_dir)
    missing = [path for path in (output, *output.parents) if not path.exists()]
    faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
    try:
        check(config)
        start_distributed()
        facts = ranks.gather(_collect_facts(config))
        logger.info("%d rank(s) on %d host(s)", len(facts), len({fact.host for fact in facts}))
        problems = compare(facts)
        if not problems:
            problems = _check_network(len({fact.host for fact in facts}))
        if not problems:
            _try_steps(config, output)
        return problems
    except KinspanError as error:
        raise KinspanError(f"{socket.gethostname()}: {error}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        for folder in missing:
            with suppress(OSError):  # it is not empty, or another rank has removed it
                folder.rmdir()


def _collect_facts(config: PretrainConfig) -> HostFacts:
    settings = {f"--{name}": str(value) for name, value in asdict(config).items() if name not in PER_HOST}
    shared = _collect_versions() | settings
    problems = _check_disks(config.output_dir)
    if torch.cuda.is_available():
        shared["device"] = torch.cuda.get_device_name()
        free, total = torch.cuda.mem_get_info()
        if free < MIN_FREE_SHARE * total:
            problems.append(f"GPU {torch.cuda.current_device()}: another process uses {(total - free) / 1e9:.0f} GB")
    else:
        shared["device"] = "processor"
    for path in list_paths(list_sources(config)):
        try:
            corpus = Corpus(path, verify=False, cache=config.cache)
            shared[f"corpus {redact(path)}"] = corpus.manifest.fingerprint
            for number in range(0 if is_url(path) else len(corpus.manifest.shards)):
                corpus.shard(number)
        except (KinspanError, OSError) as error:
            problems.append(str(error))
    return HostFacts(socket.gethostname(), shared, problems)


def _collect_versions() -> dict[str, str]:
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in (PROJECT_ROOT / name).rglob("*.py")):
        digest.update(f"{path.relative_to(PROJECT_ROOT)}\n".encode() + path.read_bytes())
    versions = {name: str(number) for name, number in list_versions().items()}
    versions["kinspan's source"] = digest.hexdigest()[:12]
    if torch.cuda.is_available():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with suppress(OSError):
            versions["nvidia driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return versions


def _check_disks(output_dir: str) -> list[str]:
    try:
        least = {open_folder(output_dir): MIN_DISK_SPACE}
    except KinspanError as error:
        return [str(error)]
    if ranks.count() > 1:
        least[Path("/dev/shm")] = MIN_SHARED_MEMORY
    free = {path: shutil.disk_usage(path).free / 1e9 for path in least}
    return [f"{path} has {free[path]:.2f} GB free, below {size:g}" for path, size in least.items() if free[path] < size]


def compare(facts: list[HostFacts]) -> list[str]:
    """Returns each host's problems, then each value that differs from that of most ranks."""
    lines = [f"{fact.host}: {problem}" for fact in facts for problem in fact.problems]
    for name in dict.fromkeys(name for fact in facts for name in fact.shared):
        usual = Counter(fact.shared.get(name, "not there") for fact in facts).most_common(1)[0][0]
        for fact in facts:
            if (value := fact.shared.get(name, "not there")) != usual:
                lines.append(f"{fact.host}: {name} is {value[:60]}, elsewhere {usual[:60]}")
    return list(dict.fromkeys(lines))


def _check_network(num_hosts: int) -> list[str]:
    """Times the second of two all-reduces, which send each number about twice; returns a problem if it is slow."""
    values = torch.zeros(NUM_REDUCED, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(2):
        ranks.barrier()
        began = time.perf_counter()
        ranks.sum_over_ranks(values)[0].item()
    rate = min(ranks.gather(2 * values.nbytes / (time.perf_counter() - began) / 1e6))
    logger.info("all-reduce: %.0f MB/s", rate)
    if num_hosts == 1 or rate >= MIN_RATE:
        return []
    return [f"network: an all-reduce over all hosts runs at {rate:.1f} MB/s, below {MIN_RATE:.0f}"]


def _try_steps(config: PretrainConfig, output: Path) -> None:
    """Trains for two steps in a temporary folder. Raises KinspanError wherever the run would."""
    folder = output / f"{SHARED}preflight"
    try:
        setup = set_up(replace(keep_mlm_weight(config), output_dir=str(open_folder(folder / "run")), resume_with=[]))
        _check_checkpoints_fit(setup, output)
        facts = setup.facts | {"changed": config.list_resumed()}
        ranks.broadcast_from_rank_0(lambda: check_resumption(output, facts, setup.schedule))
        seconds, tokens = _time_step(setup)
    finally:
        if read_launcher_variables()[0] == 0:
            shutil.rmtree(folder, ignore_errors=True)
    ranks.barrier()
    total, length = setup.schedule.total, format_time(setup.schedule.total * seconds)
    logger.info("%.3g s a step, %.0f tokens/s; %d steps take %s", seconds, tokens / seconds, total, length)


def _check_checkpoints_fit(setup: Setup, output: Path) -> None:
    """Raises KinspanError unless the disk holds the checkpoints that will be kept, and the one being written."""
    config, end = setup.config, setup.schedule.total
    steps = [*range(config.save_steps, end, config.save_steps), end]
    kept = {*steps[-config.keep_checkpoints - 1 :], setup.schedule.decay_start}
    kept.update(step for step in steps if config.keep_every and step % config.keep_every == 0)
    count = len(kept.difference(map(get_step, list_checkpoints(output / CHECKPOINTS))))
    trained = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    size = CHECKPOINT_BYTES[setup.facts["precision"] == "fp32"] * trained / 1e9
    free = shutil.disk_usage(output).free / 1e9
    if count * size > free:
        raise KinspanError(f"--output_dir {output} has {free:.1f} GB free, below {count} checkpoints of {size:.1f}")


def _time_step(setup: Setup) -> tuple[float, int]:
    """Runs two steps; returns the seconds that the second took, and its number of tokens."""
    config = setup.config
    with refuse_out_of_memory(OUT_OF_MEMORY.format(setup.layout.largest, setup.train_stream.max_length)):
        engine = build_engine(setup.model, setup.deepspeed_settings, config.learning_rate, config.weight_decay)
        if config.compile:
            compile_encoders(setup.model.encoders)
        try_largest(engine, setup.train_stream, setup.layout)
        for step in range(2):
            began = time.perf_counter()
            batches = make_micro_batches(setup.train_stream, setup.layout, setup.rank, step)
            global_batch = start_count_reduction(batches, engine.module.losses)()
            weights = LossWeights(config.mlm_weight or 0.0, config.pair_weight, config.rtd_weight)
            what = global_batch, setup.train_stream.batch(0, 1), setup.layout, setup.rank
            result = train_step(engine, *what, config.seed, step, weights)
            result.sums.tolist()  # waits for a GPU
    return max(ranks.gather(time.perf_counter() - began)), global_batch.counts["num_tokens"]
