"""What preflight says: findings, a line for each check as it is made, and one verdict.

A finding names the hosts, what is wrong there, and what to do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.engine.run_folder import shorten

from .facts import Facts

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


@dataclass(frozen=True)
class Finding:
    """What is wrong on these hosts, by which of CHECKS, and what to do.

    fatal: a run would fail, or waste its time; otherwise it is only to be known
    """

    check: str
    hosts: list[str]
    text: str
    fatal: bool = True


class Report:
    """What was found, the same on all ranks; rank 0 prints it.

    hosts:    the facts of the first rank of each host
    is_first: whether this rank is one of those
    made:     the checks that were made
    """

    def __init__(self, rank: int, facts: list[Facts]) -> None:
        self.facts, self.rank = facts, rank
        self.hosts: dict[str, Facts] = {}
        for one in facts:
            self.hosts.setdefault(one.host, one)
        self.is_first = any(one.rank == rank for one in self.hosts.values())
        self.findings: list[Finding] = []
        self.made: set[str] = set()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def add(self, check: str, findings: list[Finding], note: str = "") -> None:
        """Prints what a check saw and found, at once: a later one may end the process."""
        self.made.add(check)
        self.findings += findings
        word = "FAILED" if any(finding.fatal for finding in findings) else "note" if findings else "ok"
        self.say(f"{check:<12} {word:<7} {note or CHECKS[check]}")
        for finding in findings:
            self.say(f"    {list_hosts(finding.hosts)}: {finding.text}")

    def allows(self, in_the_way: Collection[str]) -> bool:
        """Whether none of these checks has failed."""
        return not any(found.fatal and found.check in in_the_way for found in self.findings)


def compare(check: str, what: str, values: Mapping[str, Any], advice: str) -> list[Finding]:
    """A finding for each value that is not the one of most hosts, on a tie not the first host's. ``values``: by host"""
    holders: dict[str, list[str]] = {}
    for host, value in values.items():
        holders.setdefault(str(value), []).append(host)
    usual = max(holders, key=lambda value: len(holders[value]))
    others = f"{shorten(usual)} on {list_hosts(holders[usual])}"
    return [
        Finding(check, hosts, f"{what} is {shorten(value)}, and {others}: {advice}")
        for value, hosts in holders.items()
        if value != usual
    ]


def list_hosts(hosts: Sequence[str], most: int = 4) -> str:
    """The hosts' names, of many the first ones."""
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"


def format_verdict(report: Report) -> str:
    """The last line: whether to start, and if not, which hosts are in the way, and what could not be looked at."""
    fatal = [finding for finding in report.findings if finding.fatal]
    if not fatal:
        return "READY"
    hosts = list(dict.fromkeys(host for finding in fatal for host in finding.hosts))
    checks = ", ".join(dict.fromkeys(finding.check for finding in fatal))
    left = [check for check in CHECKS if check not in report.made]
    more = f" (not looked at before that is mended: {', '.join(left)})" if left else ""
    return f"NOT READY: {checks}, on {list_hosts(hosts)}{more}"
