"""What a check says: a finding names the hosts, what is wrong there, and what to do."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    check: one of table.CHECKS
    hosts: where it is
    text:  what is wrong there, and what to do
    fatal: a run would fail, or waste its time; otherwise it is only to be known
    """

    check: str
    hosts: list[str]
    text: str
    fatal: bool = True

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_odd(values: dict[str, Value]) -> tuple[Value, dict[str, Value]]:
    """The value that most hosts have, on a tie the first host's, and the hosts that have another, with theirs."""
    counted = Counter(map(repr, values.values()))
    usual = next(value for value in values.values() if counted[repr(value)] == max(counted.values()))
    return usual, {host: value for host, value in values.items() if value != usual}


def compare(
    check: str, what: str, values: dict[str, Any], advice: str, show: Callable[[Any], str] = str, fatal: bool = True
) -> list[Finding]:
    """A finding where the hosts do not all have the same value: who has another, and what the others have."""
    if not values:
        return []
    usual, odd = find_odd(values)
    others = [host for host in values if host not in odd]
    return [
        Finding(
            check,
            [host for host in odd if odd[host] == value],
            f"{what} is {show(value)}, and {show(usual)} on {list_hosts(others)}: {advice}",
            fatal,
        )
        for value in unique(odd.values())
    ]


def unique(values: Iterable[Value]) -> list[Value]:
    """Each value once, in order; they need not be hashable."""
    out: list[Value] = []
    for value in values:
        if value not in out:
            out.append(value)
    return out


def list_hosts(hosts: Sequence[str], most: int = 4) -> str:
    """The hosts' names, of many the first ones."""
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"
