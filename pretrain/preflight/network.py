"""Whether the hosts reach one another at the addresses that they give out, and how fast their links are."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import torch
import torch.distributed as dist

from .report import Finding, list_hosts

CONNECT = 5.0  # seconds for a connection within a cluster, which takes milliseconds
ASKED = 32  # hosts that one host tries to reach at a time
# A gigabit port carries 118 MB/s, one that has fallen back to 100 Mbit/s, by a bad cable, 12: no network that is as it
# should be gives what lies between.
MIN_LINK = 50.0  # MB/s
SIZES = (1 << 18, 1 << 22, 1 << 22)  # bytes sent over a link, one after the other; the best rate counts


def find_address() -> str:
    """The address that gloo gives out for this host: of GLOO_SOCKET_IFNAME, or that of the host's name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        found = [a.address for a in psutil.net_if_addrs().get(interface, []) if a.family == socket.AF_INET]
        return found[0] if found else f"no address of {interface}"
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"  # what gloo falls back to


def try_to_reach(others: dict[str, tuple[str, int]]) -> list[str]:
    """The hosts at whose address and port nobody listens; all are asked together."""
    with ThreadPoolExecutor(ASKED) as pool:
        reached = pool.map(_connects, others.values())
        return [host for host, is_there in zip(others, reached, strict=True) if not is_there]


def _connects(place: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(place, CONNECT):
            return True
    except OSError:
        return False


def check_reach(addresses: dict[str, str], unreached: dict[str, list[str]]) -> list[Finding]:
    """Whether each host reaches each other. ``unreached``: the hosts that each one does not reach"""
    found = []
    for host, address in addresses.items():
        callers = [caller for caller, missed in unreached.items() if host in missed]
        if callers:
            text = (
                f"it is not reached at {address} from {list_hosts(callers)}: open all ports between the hosts, or set "
                "GLOO_SOCKET_IFNAME there to the interface of their network (see `ip address`)"
            )
            if address.startswith("127."):  # what many systems have for their own name
                text += f", or mend {host} in its /etc/hosts"
            found.append(Finding("network", [host], text))
    return found


def pair_up(hosts: list[int]) -> list[tuple[int, int]]:
    """Links to measure, as (sender, receiver): each host sends to the next and, of three or more, to the one after, so
    that a slow link tells which end is slow. Neighbours in the list mostly share no host, and do not slow one another
    down."""
    count = len(hosts)
    steps = [(s, half) for s in range(1, min(3, count)) for half in (0, 1)]
    return [(hosts[n], hosts[(n + s) % count]) for s, half in steps for n in range(count) if n // s % 2 == half]


def measure_links(own: int, hosts: list[int]) -> dict[int, float]:
    """MB/s of the links over which this rank receives, by the sender. ``hosts``: the first rank of each host"""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = {}
    for sender, receiver in pair_up(hosts):
        if own == sender:
            _send(receiver, device)
        elif own == receiver:
            rates[sender] = _receive(sender, device)
    return rates


def _send(receiver: int, device: torch.device) -> None:
    for size in SIZES:
        dist.recv(torch.zeros(1, device=device), receiver)  # it is there: before, another link may keep it busy
        dist.send(torch.zeros(size, dtype=torch.uint8, device=device), receiver)


def _receive(sender: int, device: torch.device) -> float:
    best = 0.0
    for size in SIZES:
        buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        began = time.perf_counter()
        dist.send(torch.zeros(1, device=device), sender)
        dist.recv(buffer, sender)
        int(buffer[-1])  # waits for a GPU
        best = max(best, size / (time.perf_counter() - began) / 1e6)
    return best


def check_links(rates: dict[tuple[str, str], float]) -> list[Finding]:
    """Whether a link is slow. ``rates``: MB/s by (sender, receiver)

    A host is named whose links in one direction are all slow, otherwise both ends of a link.
    """
    slow = {link: rate for link, rate in rates.items() if rate < MIN_LINK}
    found: dict[tuple[str, ...], str] = {}
    for link, rate in slow.items():
        own = [[other for other in rates if other[end] == link[end]] for end in (0, 1)]
        at_end = [len(links) > 1 and all(other in slow for other in links) for links in own]
        if at_end[0]:
            found[link[0],] = f"it sends {show_rate(rate)}"
        if at_end[1]:
            found[link[1],] = f"it receives {show_rate(rate)}"
        if not any(at_end):
            found[link] = f"from {link[0]} to {link[1]} goes {show_rate(rate)}"
    advice = (
        f"below {show_rate(MIN_LINK)}: look at the cable, the port's speed (ethtool) and the interface that "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose"
    )
    return [Finding("bandwidth", list(hosts), f"{text}, {advice}") for hosts, text in found.items()]


def show_rate(rate: float) -> str:
    """A rate in words, such as "812 MB/s"."""
    return f"{rate:,.0f} MB/s" if rate >= 10 else f"{rate:.2g} MB/s"
