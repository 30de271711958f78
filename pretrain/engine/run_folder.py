"""The output folder of a run: whether it can be written, whether it is this run's, and making it this run's.

    run.json        what makes it this run (its identity), written when the run claims the folder
    checkpoints/    see pretrain.checkpoints.writer
    summary.json    written last of all: the run is complete
    lock            see lock.py

Pre-training and fine-tuning share these names and rules.
"""

import json
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from pretrain.engine import ranks
from pretrain.engine.lock import LOCK, RUN

SUMMARY, CHECKPOINTS = "summary.json", "checkpoints"
SHARED = ".shared-"  # how the file begins by which ranks find that they share the output folder
ADVICE = "choose another --output_dir, or delete that folder"
DEEPSPEED = "deepspeed"  # the key of an identity that holds DeepSpeed's settings
PRECISION = "precision_used"  # that of what it computes in, which --precision auto leaves to the machine
# What a run draws, which a later version of this program may draw otherwise: the version of each, and the last commit
# that goes on as the one before.
# dropout:  2 masks by pair and position, see pretrain/modeling/cpu/dropout.py; 1 was torch's, by micro-batch
# sampling: 2 keys random numbers by the corpus, and takes negatives from all paragraphs; 1 took them from anchors alone
VERSIONS = {"dropout_version": (2, "2a4d63d"), "sampling_version": (2, "fc82b68")}
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")  # how large messages are, and not what is computed


def open_folder(name: str | Path) -> Path:
    """The output folder, made where there is none.

    Raises KinspanError where it cannot be written, or its checkpoints could not be: at the start, not after hours.
    """
    folder = Path(name)
    checkpoints = folder / CHECKPOINTS
    for place in (folder, checkpoints):
        try:
            if place == folder:
                place.mkdir(parents=True, exist_ok=True)
            if place.exists():
                with tempfile.TemporaryFile(dir=place):
                    pass
        except OSError as error:
            raise KinspanError(f"--output_dir {place} cannot be written: {error.strerror}") from error
    return folder


def check_shared(folder: Path) -> None:
    """Raises KinspanError on all ranks where one of them does not see what rank 0 writes into the folder."""
    name = ranks.broadcast_from_rank_0(lambda: f"{SHARED}{secrets.token_hex(8)}")
    ranks.broadcast_from_rank_0(lambda: (folder / name).touch())
    seen = ranks.gather((folder / name).exists())
    ranks.broadcast_from_rank_0(lambda: (folder / name).unlink(missing_ok=True))
    if not all(seen):
        raise KinspanError(
            f"--output_dir {folder}: rank {seen.index(False)} does not see there what rank 0 has written; it "
            "must be on storage that all machines share"
        )


def holds_this_run(folder: Path, record: dict[str, Any], explanations: Mapping[str, str] | None = None) -> bool:
    """Whether the folder holds this run, with a checkpoint or complete; False where it is free. Writes nothing.

    A run that never came to a checkpoint has nothing to lose: the folder is free, and settings may change.

    record:       what run.json says of this run: its identity, under the key "identity" or by itself
    explanations: for a key of the identity, what to say instead where it differs

    Raises KinspanError where the folder holds another run, or no run but something else.
    """
    path = folder / RUN
    if path.exists() and ((folder / SUMMARY).exists() or any((folder / CHECKPOINTS).glob("step-*"))):
        _refuse_difference(path, record, explanations or {})
        if not (folder / SUMMARY).exists():
            refuse_other_version(path)
        return True
    names = {p.name for p in folder.iterdir() if not p.name.startswith(SHARED)} if folder.is_dir() else set()
    if not path.exists() and names - {RUN + ".tmp", LOCK}:
        raise KinspanError(f"--output_dir {folder} is not empty and holds no run: choose another folder")
    return False


def claim_folder(folder: Path, record: dict[str, Any], explanations: Mapping[str, str] | None = None) -> bool:
    """Makes the folder this run's where it is free, by writing ``record``; returns whether it was."""
    if holds_this_run(folder, record, explanations):
        return False
    write_record(folder, record)
    return True


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Writes run.json: what makes the run this run, and the versions of what it draws."""
    versions = {key: version for key, (version, _) in VERSIONS.items()}
    write_atomically(folder / RUN, json.dumps(record | versions, indent=1) + "\n")


def _refuse_difference(path: Path, record: dict[str, Any], explanations: Mapping[str, str]) -> None:
    found = read_object(path, ADVICE)
    theirs = found.get("identity") if "identity" in record else found
    if not isinstance(theirs, dict):
        raise KinspanError(f"{path} is damaged (it names no run): {ADVICE}")
    ours = json.loads(json.dumps(record.get("identity", record)))  # as it would be read back
    for key, value in ours.items():
        old = theirs.get(key)
        if key == DEEPSPEED:
            old, value = leave_out_buckets(old), leave_out_buckets(value)
        if old == value:
            continue
        change = f"its {key} is {shorten(old)}, now it is {shorten(value)}; {ADVICE}"
        if key == DEEPSPEED and isinstance(old, dict):
            change = (
                "to go on with it, give --deepspeed_config a file that holds its DeepSpeed settings, "
                f"{json.dumps(old)}; or choose another --output_dir"
            )
        if key == PRECISION and isinstance(old, str):
            change = f"it trains in {old}, now it is {value}: --precision {old} goes on with it; or {ADVICE}"
        raise KinspanError(f"--output_dir {path.parent} holds a different run: {explanations.get(key, change)}")


def refuse_other_version(path: Path) -> None:
    """Raises KinspanError where the run under way drops or samples otherwise: it would not end as it would have."""
    record = read_object(path, ADVICE)
    for key, (version, last) in VERSIONS.items():
        theirs = record.get(key, 1)
        if theirs != version:
            raise KinspanError(
                f"--output_dir {path.parent} holds a run of {key} {theirs}, where this is {version}: commit {last} of "
                f"kinspan resumes it; or {ADVICE}"
            )


def leave_out_buckets(settings: Any) -> Any:
    """DeepSpeed's settings without the sizes of its buckets, which a run may change."""
    zero = settings.get("zero_optimization") if isinstance(settings, dict) else None
    if not isinstance(zero, dict):
        return settings
    return settings | {"zero_optimization": {key: value for key, value in zero.items() if key not in BUCKETS}}


def shorten(value: Any) -> str:
    """A value as a message shows it: a long one by its beginning."""
    text = str(value)
    return text if len(text) <= 40 else text[:12] + "..."
