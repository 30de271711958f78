"""Hosts that reach one another, and the measuring of a link, between threads."""

import queue
import socket
import threading
import time

import pytest

from pretrain.preflight import network
from pretrain.preflight.network import find_address, try_to_reach


def test_a_host_is_reached_where_somebody_listens(monkeypatch):
    monkeypatch.setattr(network, "CONNECT", 0.5)
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        others = {"node0": ("127.0.0.1", port), "node8": ("127.0.0.1", 1), "node9": ("no address of eth7", port)}
        assert try_to_reach(others) == ["node8", "node9"]


def test_the_address_is_that_of_the_chosen_interface(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert find_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    assert find_address() == "no address of none0"


@pytest.fixture
def threads_as_ranks(monkeypatch):
    """``threads_as_ranks(world, function, rates)``: what the function returns for each rank; a rank sends as many bytes
    per second as ``rates`` says."""
    own = threading.local()

    def run(world, function, rates):
        lines = {(a, b): queue.Queue() for a in range(world) for b in range(world)}

        def send(tensor, target):
            time.sleep(tensor.nbytes / rates.get(own.rank, 1e12))
            lines[own.rank, target].put(tensor.clone())

        def receive(tensor, source):
            tensor.copy_(lines[source, own.rank].get(timeout=10))

        monkeypatch.setattr(network.dist, "send", send)
        monkeypatch.setattr(network.dist, "recv", receive)
        found = {}

        def work(rank):
            own.rank = rank
            found[rank] = function(rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return [found[rank] for rank in range(world)]

    return run


def test_links_are_measured_in_both_directions(threads_as_ranks, monkeypatch):
    """Two ranks each on three hosts: the second ones have no part."""
    monkeypatch.setattr(network, "SIZES", (1 << 16, 1 << 18))
    firsts = [0, 2, 4]
    received = threads_as_ranks(6, lambda rank: network.measure_links(rank, firsts), {2: 1e6})
    assert received[1] == received[3] == received[5] == {}
    rates = {(sender, rank): rate for rank in firsts for sender, rate in received[rank].items()}
    assert len(rates) == 6
    assert {link for link, rate in rates.items() if rate < 2} == {(2, 4), (2, 0)}
