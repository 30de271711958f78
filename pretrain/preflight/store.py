"""How the ranks tell one another what they found, before they can compute together.

Only the key-value store of rank 0 is used, which needs one port of one host: what keeps the ranks from connecting can
then still be told, by the host's name and after a bounded time.
"""

import json
import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from data_pipeline.core.errors import KinspanError
from pretrain.engine.engine import describe_network_error
from pretrain.engine.world import World, adopt_world

ARRIVAL = 120.0  # seconds for all ranks to come: importing torch from slow shared storage takes a minute
ANSWER = 300.0  # seconds that the slowest part of one rank may take beyond the others'
FAREWELL = 30.0  # seconds for which rank 0 waits for the others in the end


class RankStore:
    """What the ranks tell one another. All of them call ``gather`` in the same order.

    store: None where this rank is alone
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store, self.rank, self.world, self.host = store, rank, world, socket.gethostname()
        if store is not None:
            store.set(f"host/{rank}", self.host)

    def gather(self, name: str, own: Any = None, seconds: float = ANSWER) -> list[Any]:
        """The values of all ranks, which travel as JSON.

        Raises KinspanError where a rank has told nothing after so many seconds.
        """
        if self.store is None:
            return [json.loads(json.dumps(own))]
        keys = [f"{name}/{rank}" for rank in range(self.world)]
        try:
            self.store.set(keys[self.rank], json.dumps(own))
            if absent := self._wait(keys, seconds):
                raise KinspanError(self._describe_absent(absent, seconds))
            return [json.loads(value) for value in self.store.multi_get(keys)]
        except RuntimeError as lost:  # torch's, where the connection is lost
            text = f"rank 0, at {os.environ['MASTER_ADDR']}, gives no answer ({name}): see what it says"
            raise KinspanError(text) from lost

    def leave(self) -> None:
        """Keeps rank 0, whose process may hold the store, until the others need it no more, or are gone."""
        with suppress(RuntimeError):  # where rank 0 is gone
            if self.store is not None:
                self.store.set(f"left/{self.rank}", "")
                if self.rank == 0:
                    self._wait([f"left/{rank}" for rank in self._find_hosts()], FAREWELL)

    def _wait(self, keys: list[str], seconds: float) -> list[int]:
        """Waits for all keys; the places of those that are not set after so many seconds."""
        with suppress(RuntimeError):  # torch's, where it takes too long
            self.store.wait(keys, timedelta(seconds=seconds))
            return []
        return [place for place, key in enumerate(keys) if not self.store.check([key])]

    def _find_hosts(self) -> dict[int, str]:
        keys = {rank: f"host/{rank}" for rank in range(self.world)}
        return {rank: self.store.get(key).decode() for rank, key in keys.items() if self.store.check([key])}

    def _describe_absent(self, absent: list[int], seconds: float) -> str:
        hosts = self._find_hosts()
        who = [name_ranks({rank: hosts[rank] for rank in absent if rank in hosts})]
        if strangers := [rank for rank in absent if rank not in hosts]:
            here = ", ".join(dict.fromkeys(hosts.values()))
            who.append(f"{list_ranks(strangers)} of {self.world} (from {here} came {len(hosts)})")
        return (
            f"{' and '.join(filter(None, who))} gave no sign for {seconds:.0f} s: see what is on the screen or in the "
            f"log there, and whether {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}, is reached from "
            "there"
        )


def open_store() -> RankStore:
    """Joins the other ranks at rank 0's store; a rank alone needs none.

    Raises KinspanError where rank 0 is not reached, and where ranks do not come.
    """
    world = adopt_world()
    store = RankStore(_connect(world) if world.size > 1 else None, world.rank, world.size)
    try:
        store.gather("arrival", seconds=ARRIVAL)
    except KinspanError:
        store.leave()
        raise
    return store


def _connect(world: World) -> Any:
    """The store at MASTER_ADDR and MASTER_PORT, held by torchrun's agent or rank 0, which the process group then
    shares."""
    holds = world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options: dict[str, Any] = {"wait_for_workers": False, "multi_tenant": True, "timeout": timedelta(seconds=ARRIVAL)}
    try:
        store = dist.TCPStore(world.host, int(os.environ["MASTER_PORT"]), world.size, is_master=holds, **options)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise KinspanError(describe_network_error(error)) from error
    return dist.PrefixStore(f"kinspan preflight {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def name_ranks(hosts: dict[int, str]) -> str:
    """Ranks with their hosts: "node1 (ranks 2, 3)"."""
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(host, []).append(rank)
    return ", ".join(f"{host} ({list_ranks(own)})" for host, own in of_host.items())


def list_ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
