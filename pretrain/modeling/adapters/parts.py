"""What an adapter is made of, as adapter.json says it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

KINDS = ("bottleneck", "fusion", "lora")
LORA_SCALE = 2.0  # what LoRA's product is multiplied by: alpha over rank, whatever the rank


@dataclass(frozen=True)
class AdapterPart:
    """What an adapter adds to every layer.

    name: what it was trained on, in a word; names of a fusion's bottlenecks show whose weight is which
    size: the width of the bottleneck, or LoRA's rank; of a fusion 0
    of:   the bottlenecks that a fusion weighs
    """

    kind: Literal["bottleneck", "fusion", "lora"]
    name: str
    size: int = 0
    of: tuple["AdapterPart", ...] = ()


def as_json(parts: tuple[AdapterPart, ...]) -> list[dict[str, Any]]:
    """Returns the parts as adapter.json holds them."""
    return [{key: value for key, value in asdict(part).items() if value or key == "name"} for part in parts]


def read_part(entry: dict[str, Any]) -> AdapterPart:
    """Returns a part of adapter.json. Raises ValueError, or what wrong types raise, if it is none."""
    below = tuple(map(read_part, entry.get("of", ())))
    part = AdapterPart(entry["kind"], str(entry["name"]), int(entry.get("size", 0)), below)
    fits = bool(below) and not part.size if part.kind == "fusion" else part.size > 0 and not below
    if part.kind not in KINDS or not fits or any(fused.kind != "bottleneck" for fused in below):
        raise ValueError(f"{part.name} is no adapter")
    return part


def describe_parts(parts: tuple[AdapterPart, ...]) -> str:
    """Names the parts for notes and cards."""
    words = {
        "bottleneck": lambda part: f"a bottleneck of {part.size} ({part.name})",
        "fusion": lambda part: f"the fusion of {', '.join(below.name for below in part.of)}",
        "lora": lambda part: f"LoRA of rank {part.size} ({part.name})",
    }
    return ", ".join(words[part.kind](part) for part in parts)
