"""What preflight prints: a line for each check and each host, what is wrong, and one verdict."""

from collections.abc import Sequence

from .checks import first_of_each_host, show_bytes
from .exchange import list_ranks
from .facts import OUTPUT, Facts
from .finding import Finding, list_hosts

CHECKS = {  # in the order of the table
    "versions": "packages, Python, drivers and source are the same",
    "settings": "flags and settings are the same",
    "devices": "devices are the same, and free",
    "disk": "there is room where the run writes",
    "descriptors": "a process may open enough files and connections",
    "clock": "the clocks agree",
    "corpus": "every host sees the corpora as their manifests say",
    "network": "the hosts reach one another",
    "bandwidth": "no link is slow",
    "steps": "the largest batch fits, and some steps train",
    "speed": "the devices are about as fast",
}
HOSTS_SHOWN = 24  # of many hosts, those with findings first


def format_table(
    facts: Sequence[Facts], findings: Sequence[Finding], notes: dict[str, str], columns: dict[str, dict[str, str]]
) -> str:
    """The whole text.

    notes:   what was seen, by check; a check without a note was not made
    columns: more of each host, by heading and host
    """
    hosts = first_of_each_host(facts)
    lines = [f"preflight of {len(facts)} rank(s) on {len(hosts)} host(s): {list_hosts(list(hosts))}", ""]
    lines += _align([["check", "", ""], *([name, *_judge(name, findings, notes)] for name in CHECKS)])
    lines += ["", *_align(_list_hosts(facts, findings, columns)), ""]
    for number, finding in enumerate(sorted(findings, key=lambda f: not f.fatal), 1):
        mark = "" if finding.fatal else " (to know)"
        lines.append(f"{number}. {list_hosts(finding.hosts)}: {finding.check}{mark}: {finding.text}")
    return "\n".join([*lines, *([""] if findings else []), format_verdict(findings)])


def format_verdict(findings: Sequence[Finding]) -> str:
    """The last line: whether to start, and if not, which hosts are in the way."""
    fatal = [finding for finding in findings if finding.fatal]
    if not fatal:
        return "READY"
    hosts = list(dict.fromkeys(host for finding in fatal for host in finding.hosts))
    checks = ", ".join(dict.fromkeys(finding.check for finding in fatal))
    return f"NOT READY: {checks}, on {list_hosts(hosts)}"


def _judge(check: str, findings: Sequence[Finding], notes: dict[str, str]) -> tuple[str, str]:
    own = [finding for finding in findings if finding.check == check]
    word = "FAILED" if any(f.fatal for f in own) else "note" if own else "ok" if check in notes else "not made"
    return word, notes.get(check) or CHECKS[check]


def _list_hosts(
    facts: Sequence[Facts], findings: Sequence[Finding], columns: dict[str, dict[str, str]]
) -> list[list[str]]:
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
    return rows


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(len(row) for row in rows)
    sizes = [max((len(row[n]) for row in rows if n < len(row)), default=0) for n in range(width)]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=False)).rstrip() for row in rows]
