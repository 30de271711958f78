"""Ranks that tell one another what they found: all hear the same, and one that is absent is named by its host."""

import threading

import pytest
import torch.distributed as dist

from data_pipeline.core.errors import KinspanError
from pretrain.preflight import store as store_module
from pretrain.preflight.store import RankStore


@pytest.fixture
def make_stores(monkeypatch):
    """``make_stores({rank: host}, world)``: of ranks that are threads, at one store."""
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    names = {}
    monkeypatch.setattr(store_module.socket, "gethostname", lambda: names["now"])

    def make(hosts, world):
        names["now"] = "node0"
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = []
        for rank, host in hosts.items():
            names["now"] = host
            store = server if rank == 0 else dist.TCPStore("127.0.0.1", server.port, is_master=False)
            made.append(RankStore(store, rank, world))
        return made

    return make


def gather_all(stores, **options):
    """What each rank hears, or the text of its error."""
    heard = {}

    def gather(one):
        try:
            heard[one.rank] = one.gather("here", one.rank, **options)
        except KinspanError as error:
            heard[one.rank] = str(error)

    threads = [threading.Thread(target=gather, args=(one,)) for one in stores]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return heard


def test_all_hear_what_all_say(make_stores):
    stores = make_stores({0: "node0", 1: "node0", 2: "node1"}, 3)
    assert gather_all(stores) == {rank: [0, 1, 2] for rank in range(3)}


def test_an_absent_rank_is_named_by_its_host_on_all_ranks(make_stores):
    stores = make_stores({0: "node0", 1: "node1", 2: "node2"}, 4)
    heard = gather_all(stores[:2], seconds=0.5)
    assert heard[0] == heard[1]
    assert heard[0].startswith("node2 (rank 2) and rank 3 of 4 (from node0, node1, node2 came 3) gave no sign for 0 s")
    assert "node0, port 29500" in heard[0]


def test_without_rank_0_nobody_waits_for_ever(make_stores):
    heard = gather_all(make_stores({0: "node0", 1: "node1"}, 2)[1:], seconds=0.2)
    assert heard[1].startswith("rank 0, at node0, gives no answer")


def test_a_store_that_is_gone_is_one_line(make_stores):
    """Rank 0 has ended between two meetings: its store takes nothing any more."""

    class Gone:
        def set(self, key, value):
            if not key.startswith("host/"):
                raise dist.DistNetworkError("Broken pipe")

    make_stores({}, 1)  # for its variables
    with pytest.raises(KinspanError, match="rank 0, at node0, gives no answer \\(here\\): see what it says"):
        RankStore(Gone(), 1, 2).gather("here")


def test_alone_no_store_is_needed():
    assert RankStore(None, 0, 1).gather("here", (1, 2)) == [[1, 2]]
