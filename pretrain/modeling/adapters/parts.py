"""What an adapter is made of, as adapter.json says it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from data_pipeline.core.errors import KinspanError

KINDS = ("bottleneck", "fusion", "lora")
LORA_SCALE = 2.0  # what LoRA's product is multiplied by: alpha over rank, whatever the rank


@dataclass(frozen=True)
class AdapterPart:
    """One of the things that an adapter adds to every layer, one after another.

    name: what it was trained on, in a word; names of a fusion's bottlenecks show whose weight is which
    size: the width of the bottleneck, or LoRA's rank; of a fusion 0
    of:   the bottlenecks that a fusion weighs
    """

    kind: Literal["bottleneck", "fusion", "lora"]
    name: str
    size: int = 0
    of: tuple["AdapterPart", ...] = ()


def as_json(parts: tuple[AdapterPart, ...]) -> list[dict[str, Any]]:
    """The parts as adapter.json holds them."""
    return [{key: value for key, value in asdict(part).items() if value or key == "name"} for part in parts]


def read_parts(found: Any, place: str) -> tuple[AdapterPart, ...]:
    """The parts that adapter.json names. Raises KinspanError, naming ``place``, where they are none of KINDS."""
    try:
        parts = tuple(_read_part(entry, place) for entry in found)
        whole = bool(parts) and (len(parts) == 1 or all(part.kind != "lora" for part in parts))
    except (TypeError, LookupError, ValueError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise KinspanError(f"{place} is damaged: its parts are not those of an adapter; get the folder again")
    return parts


def _read_part(entry: dict[str, Any], place: str) -> AdapterPart:
    kind, name, size = entry["kind"], str(entry["name"]), int(entry.get("size", 0))
    of = tuple(_read_part(one, place) for one in entry.get("of", ()))
    fits = size > 0 and not of if kind != "fusion" else size == 0 and bool(of)
    if kind not in KINDS or not fits or any(one.kind != "bottleneck" for one in of):
        raise ValueError
    return AdapterPart(kind, name, size, of)


def describe_parts(parts: tuple[AdapterPart, ...]) -> str:
    """The parts in words, for notes and cards."""
    words = {
        "bottleneck": lambda part: f"a bottleneck of {part.size} ({part.name})",
        "fusion": lambda part: f"the fusion of {', '.join(one.name for one in part.of)}",
        "lora": lambda part: f"LoRA of rank {part.size} ({part.name})",
    }
    return ", then ".join(words[part.kind](part) for part in parts)
