"""What preflight says: findings, a line for each check as it is made, the hosts, and one verdict.

A finding names the hosts, what is wrong there, and what to do.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .facts import OUTPUT, Facts, first_of_each_host, show_bytes
from .store import list_ranks

Value = TypeVar("Value")
CHECKS = {  # in their order, with what is said of one that has nothing more to say
    "versions": "packages, Python, drivers and source are the same",
    "settings": "flags and settings are the same",
    "devices": "devices are the same, and free",
    "disk": "room where the run writes",
    "descriptors": "files and connections that a process may open",
    "clock": "the clocks agree",
    "corpus": "every host sees the corpora as their manifests say",
    "network": "the hosts reach one another",
    "bandwidth": "no link is slow",
    "steps": "the largest batch fits, and some steps train",
    "speed": "the devices are about as fast",
}
HOSTS_SHOWN = 24  # of many hosts, those with findings first


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    check: one of CHECKS
    hosts: where it is
    text:  what is wrong there, and what to do
    fatal: a run would fail, or waste its time; otherwise it is only to be known
    """

    check: str
    hosts: list[str]
    text: str
    fatal: bool = True


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


def format_title(facts: Sequence[Facts]) -> str:
    """The first line: how many ranks and hosts there are."""
    hosts = first_of_each_host(facts)
    return f"preflight of {len(facts)} rank(s) on {len(hosts)} host(s): {list_hosts(list(hosts))}"


def format_check(check: str, note: str, findings: Sequence[Finding]) -> str:
    """The line of a check, and a line for each finding. ``note``: what was seen"""
    word = "FAILED" if any(finding.fatal for finding in findings) else "note" if findings else "ok"
    lines = [f"{check:<12} {word:<7} {note or CHECKS[check]}"]
    for finding in findings:
        about = "" if finding.check == check else f" ({finding.check})"
        lines.append(f"    {list_hosts(finding.hosts)}{about}: {finding.text}")
    return "\n".join(lines)


def format_hosts(facts: Sequence[Facts], findings: Sequence[Finding], columns: dict[str, dict[str, str]]) -> str:
    """A line for each host. ``columns``: more of each, by heading and host"""
    hosts = first_of_each_host(facts)
    troubled = {host for finding in findings for host in finding.hosts}
    shown = sorted(hosts, key=lambda host: host not in troubled)[:HOSTS_SHOWN] if len(hosts) > HOSTS_SHOWN else hosts
    rows = [["host", "ranks", "device", "free memory", "free disk", "files", *columns]]
    for host in shown:
        one = hosts[host]
        ranks = [other.rank for other in facts if other.host == host]
        total, free = one.device_bytes
        device = f"{one.cores} core(s)" if one.device == "processor" else one.device
        row = [host, list_ranks(ranks).split(" ", 1)[1], device, f"{free / 1e9:.0f} of {total / 1e9:.0f} GB"]
        row += [show_bytes(one.disks[OUTPUT][1]), f"{one.descriptors:,}"]
        rows.append(row + [column.get(host, "") for column in columns.values()])
    if len(hosts) > len(shown):
        rows.append([f"and {len(hosts) - len(shown)} more"])
    sizes = [max(len(row[n]) for row in rows if n < len(row)) for n in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def format_verdict(findings: Sequence[Finding], made: Collection[str]) -> str:
    """The last line: whether to start, and if not, which hosts are in the way, and what could not be looked at."""
    fatal = [finding for finding in findings if finding.fatal]
    if not fatal:
        return "READY"
    hosts = list(dict.fromkeys(host for finding in fatal for host in finding.hosts))
    checks = ", ".join(dict.fromkeys(finding.check for finding in fatal))
    left = [check for check in CHECKS if check not in made]
    more = f" (not looked at before that is mended: {', '.join(left)})" if left else ""
    return f"NOT READY: {checks}, on {list_hosts(hosts)}{more}"
