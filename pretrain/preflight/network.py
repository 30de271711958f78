"""Whether the hosts reach one another at the addresses that they give out, and how fast their links are."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist

from .report import Finding, list_hosts

CONNECT = 5.0  # seconds for a connection within a cluster, which takes milliseconds
ASKED = 32  # hosts that one host tries to reach at a time
# A gigabit port carries 118 MB/s, one that has fallen back to 100 Mbit/s, by a bad cable, 12: no network that is as it
# should be gives what lies between.
MIN_LINK = 50.0  # MB/s
# Training goes at the pace of the slowest link: one that is much slower than the others is worth a look.
SLOW_LINK_SHARE = 0.25
SIZES = (1 << 18, 1 << 22, 1 << 22, 1 << 26)  # bytes sent over a link, one after the other, until it has shown its rate
LONG_ENOUGH = 0.5  # seconds that a transfer takes whose rate is trusted
REDUCED = (1 << 20, 1 << 22, 1 << 26, 1 << 26)  # bytes of the all-reduces


class Listener:
    """Answers with this host's name whoever connects to the address that collectives on processors use."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("0.0.0.0", 0), backlog=1024)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self.socket.accept()
                with caller, suppress(OSError):
                    caller.sendall(socket.gethostname().encode())

    def close(self) -> None:
        self.socket.close()


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
    """The hosts that are not reached at their address and port, or answer with the name of another.

    They are asked together: where a firewall drops all, one after another would take minutes.
    """
    with ThreadPoolExecutor(ASKED) as pool:
        names = pool.map(lambda place: _ask_name(*place), others.values())
        return [host for host, name in zip(others, names, strict=True) if name != host]


def _ask_name(address: str, port: int) -> str | None:
    try:
        with socket.create_connection((address, port), CONNECT) as connection:
            return connection.recv(256).decode(errors="replace")
    except OSError:
        return None


def check_reach(addresses: dict[str, str], unreached: dict[str, list[str]]) -> list[Finding]:
    """Whether each host reaches each other. ``unreached``: the hosts that each one does not reach"""
    found = []
    for host, address in addresses.items():
        callers = [caller for caller, missed in unreached.items() if host in missed]
        if not callers:
            continue
        advice = "open all ports between the hosts, or set GLOO_SOCKET_IFNAME to the interface of their network"
        if address.startswith("127."):  # what many systems have for their own name, in /etc/hosts
            advice = (
                "other hosts never reach that one: set GLOO_SOCKET_IFNAME there to its network interface (see "
                f"`ip address`), or mend {host} in its /etc/hosts"
            )
        found.append(Finding("network", [host], f"it is not reached at {address} from {list_hosts(callers)}: {advice}"))
    return found


def pair_up(hosts: list[int]) -> list[tuple[int, int]]:
    """Links to measure, as (sender, receiver): each host sends to the next and, of three or more, to the one after,
    so that a slow link tells whether its sender or its receiver is slow.

    Neighbours in the list mostly share no host: all ranks take them in this order, each its own, and do not slow one
    another down.
    """
    count = len(hosts)
    steps = [(s, half) for s in range(1, min(3, count)) for half in (0, 1)]
    return [(hosts[n], hosts[(n + s) % count]) for s, half in steps for n in range(count) if n // s % 2 == half]


def measure_link(own: int, link: tuple[int, int], device: torch.device) -> float | None:
    """MB/s over one link, for its receiver; None for its sender. The receiver asks for one transfer after another."""
    sender, receiver = link
    asked = torch.zeros(1, dtype=torch.int64, device=device)
    if own == sender:
        dist.send(asked, receiver)  # it is there: before, it may have been busy with another link
        while True:
            dist.recv(asked, receiver)
            if not (size := int(asked)):
                return None
            dist.send(torch.zeros(size, dtype=torch.uint8, device=device), receiver)
    dist.recv(asked, sender)
    best = 0.0
    for size in SIZES:
        asked.fill_(size)
        buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        _wait(device)
        began = time.perf_counter()
        dist.send(asked, sender)
        dist.recv(buffer, sender)
        _wait(device)
        seconds = time.perf_counter() - began
        best = max(best, size / seconds / 1e6)
        if seconds > LONG_ENOUGH:
            break
    dist.send(torch.zeros_like(asked), sender)
    return best


def measure_links(own: int, hosts: list[int], device: torch.device) -> dict[str, float]:
    """MB/s of the links over which this rank receives, by the sender. ``hosts``: the first rank of each host; the other
    ranks pass through"""
    rates = {str(link[0]): measure_link(own, link, device) for link in pair_up(hosts) if own in link}
    return {sender: rate for sender, rate in rates.items() if rate is not None}


def measure_all_reduce(device: torch.device) -> float:
    """MB/s that each rank sends and receives in an all-reduce over all ranks, the best that was seen."""
    world, best = dist.get_world_size(), 0.0
    for size in REDUCED:
        numbers = torch.zeros(size // 4, device=device)
        dist.barrier()
        _wait(device)
        began = time.perf_counter()
        dist.all_reduce(numbers)
        _wait(device)
        seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # so that all ranks go on or stop alike
        best = max(best, 2 * (world - 1) / world * size / float(seconds) / 1e6)
        if float(seconds) > LONG_ENOUGH:
            break
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def check_links(rates: dict[tuple[str, str], float]) -> list[Finding]:
    """Whether a link is slow. ``rates``: MB/s by (sender, receiver)

    Where each host has links with two others, one is named whose links in one direction are all slow; otherwise both
    ends are.
    """
    if not rates:
        return []
    usual = median(rates.values())
    slow = {link: rate for link, rate in rates.items() if rate < max(MIN_LINK, SLOW_LINK_SHARE * usual)}
    found: list[Finding] = []
    explained: set[tuple[str, str]] = set()
    for end, verb in ((0, "it sends"), (1, "it receives")):
        for host in dict.fromkeys(link[end] for link in slow):
            own = [link for link in rates if link[end] == host]
            if len(own) > 1 and all(link in slow for link in own):
                found.append(_describe_slow([host], verb, max(slow[link] for link in own), usual))
                explained |= set(own)
    for (sender, receiver), rate in slow.items():
        if (sender, receiver) not in explained:
            found.append(_describe_slow([sender, receiver], f"from {sender} to {receiver} goes", rate, usual))
    return found


def _describe_slow(hosts: list[str], what: str, rate: float, usual: float) -> Finding:
    """A link that is slow beside the others is only to be known: other work may be in its way for the moment."""
    is_broken = rate < MIN_LINK
    beside = f"below {show_rate(MIN_LINK)}" if is_broken else f"and {show_rate(usual)} is usual here"
    text = (
        f"{what} {show_rate(rate)}, {beside}: look at the cable, the port's speed (ethtool) and the interface that "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose"
    )
    return Finding("bandwidth", hosts, text, is_broken)


def show_rate(rate: float) -> str:
    """A rate in words, such as "812 MB/s"."""
    return f"{rate:,.0f} MB/s" if rate >= 10 else f"{rate:.2g} MB/s"


def name_rates(hosts: dict[int, str], received: Sequence[dict[str, float]]) -> dict[tuple[str, str], float]:
    """The rates of all links by their hosts. ``received``: of each rank what ``measure_links`` returned"""
    rates: dict[Any, float] = {}
    for rank, own in enumerate(received):
        for sender, rate in own.items():
            rates[hosts[int(sender)], hosts[rank]] = rate
    return rates
