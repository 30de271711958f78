"""How the ranks tell rank 0 what they found, before they can compute together.

Only the key-value store of rank 0 is used, which needs one port of one host: what keeps the ranks from connecting with
one another, or one host from coming at all, can then still be told, by the host's name and after a bounded time.
"""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from data_pipeline.errors import KinspanError
from pretrain.runtime.engine import describe_network_error
from pretrain.runtime.world import World, adopt_world

Value = TypeVar("Value")
ARRIVAL = 120.0  # seconds for all ranks to come: importing torch from slow shared storage takes a minute
ANSWER = 300.0  # seconds that the slowest part of one rank may take beyond the others'
FAREWELL = 30.0  # seconds more that rank 0's answer may take, in which it waits for the others


class Exchange:
    """What one rank says to rank 0, and hears from it. All ranks call ``meet`` in the same order.

    store: None where this rank is alone
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store, self.rank, self.world, self.host = store, rank, world, socket.gethostname()
        if store is not None:
            store.set(f"host/{rank}", self.host)

    def meet(self, name: str, own: Any, judge: Callable[[list[Any]], Value], seconds: float = ANSWER) -> Value:
        """What ``judge`` makes of the values of all ranks, for all ranks; rank 0 calls it. All is told as JSON.

        Raises KinspanError on all ranks where a rank has told nothing after so many seconds, or where ``judge`` raises
        it.
        """
        if self.store is None:
            return judge([json.loads(json.dumps(own))])
        try:
            self.store.set(f"{name}/{self.rank}", json.dumps(own))
            if self.rank == 0:
                self.store.set(f"{name}/judged", json.dumps(self._judge(name, judge, seconds)))
            self.store.wait([f"{name}/judged"], timedelta(seconds=seconds + FAREWELL))
            value, error = json.loads(self.store.get(f"{name}/judged"))
        except RuntimeError as lost:  # torch's, where it takes too long or the connection is lost
            text = f"rank 0, at {os.environ['MASTER_ADDR']}, gives no answer ({name}): see what it says"
            raise KinspanError(text) from lost
        if error:
            raise KinspanError(error)
        return value

    def leave(self) -> None:
        """Keeps rank 0, whose process may hold the store, until the others need it no more, or are gone."""
        if self.store is None:
            return
        with suppress(RuntimeError):  # where rank 0 is gone
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                self._come([f"left/{rank}" for rank in self._find_hosts()], FAREWELL)

    def _judge(self, name: str, judge: Callable[[list[Any]], Any], seconds: float) -> tuple[Any, str | None]:
        keys = [f"{name}/{rank}" for rank in range(self.world)]
        if not self._come(keys, seconds):
            return None, self._describe_absent(
                [r for r, key in enumerate(keys) if not self.store.check([key])], seconds
            )
        try:
            return judge([json.loads(self.store.get(key)) for key in keys]), None
        except KinspanError as error:
            return None, str(error)

    def _come(self, keys: list[str], seconds: float) -> bool:
        """Whether all keys are set within so many seconds."""
        try:
            self.store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:  # torch's, where it takes too long
            return False
        return True

    def _find_hosts(self) -> dict[int, str]:
        """The host of each rank that has come."""
        keys = {rank: f"host/{rank}" for rank in range(self.world)}
        return {rank: self.store.get(key).decode() for rank, key in keys.items() if self.store.check([key])}

    def _describe_absent(self, absent: list[int], seconds: float) -> str:
        hosts = self._find_hosts()
        known = {rank: hosts[rank] for rank in absent if rank in hosts}
        strangers = [rank for rank in absent if rank not in hosts]
        who = [name_ranks(known)] if known else []
        if strangers:
            here = ", ".join(dict.fromkeys(hosts.values()))
            who.append(f"{list_ranks(strangers)} of {self.world} (from {here} came {len(hosts)})")
        return (
            f"{' and '.join(who)} gave no sign for {seconds:.0f} s: see what is on the screen or in the log there, and "
            f"whether {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}, is reached from there"
        )


def open_exchange() -> Exchange:
    """Joins the other ranks at rank 0's store; a rank alone needs none.

    Raises KinspanError where rank 0 is not reached, and where ranks do not come.
    """
    world = adopt_world()
    if world.size == 1:
        return Exchange(None, 0, 1)
    exchange = Exchange(_open_store(world), world.rank, world.size)
    try:
        exchange.meet("arrival", None, lambda values: None, ARRIVAL)
    except KinspanError:
        exchange.leave()
        raise
    return exchange


def _open_store(world: World) -> Any:
    """The store at MASTER_ADDR and MASTER_PORT, which training's own process group then shares. With torchrun its agent
    holds it, else rank 0."""
    holds = world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = dist.TCPStore(
            world.host,
            int(os.environ["MASTER_PORT"]),
            world.size,
            is_master=holds,
            timeout=timedelta(seconds=ARRIVAL),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise KinspanError(describe_network_error(error)) from error
    return dist.PrefixStore(f"kinspan preflight {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def list_ranks(ranks: list[int]) -> str:
    """Ranks in words: "rank 3", or "ranks 0-3, 8"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def name_ranks(hosts: dict[int, str]) -> str:
    """Ranks with their hosts: "node1 (ranks 2-3)"."""
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(host, []).append(rank)
    return ", ".join(f"{host} ({list_ranks(own)})" for host, own in of_host.items())
