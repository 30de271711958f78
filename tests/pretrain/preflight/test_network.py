"""Hosts that reach one another, and the measuring of a link, between threads."""

import queue
import socket
import threading
import time

import pytest
import torch

from pretrain.preflight import network
from pretrain.preflight.network import Listener, find_address, measure_links, name_rates, try_to_reach

PROCESSOR = torch.device("cpu")


def test_a_host_is_reached_where_it_answers_with_its_own_name(monkeypatch):
    monkeypatch.setattr(network, "CONNECT", 0.5)
    listener = Listener()
    here = socket.gethostname()
    others = {here: ("127.0.0.1", listener.port), "node9": ("127.0.0.1", listener.port)}
    assert try_to_reach(others) == ["node9"]  # at that address another host answers
    listener.close()
    assert try_to_reach({here: ("127.0.0.1", 1)}) == [here]


def test_what_answers_in_another_language_is_another_host():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"\xff\xfe\x00"), daemon=True).start()
        assert try_to_reach({"node9": ("127.0.0.1", server.getsockname()[1])}) == ["node9"]


def test_hosts_that_drop_everything_are_asked_together(monkeypatch):
    """One after another, a hundred of them would take longer than rank 0 waits."""
    monkeypatch.setattr(network, "_ask_name", lambda address, port: time.sleep(0.1))
    others = {f"node{n}": ("10.0.0.1", 1) for n in range(64)}
    began = time.monotonic()
    assert try_to_reach(others) == list(others)
    assert time.monotonic() - began < 3
    assert try_to_reach({}) == []


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


def test_links_are_measured_in_both_directions_and_a_slow_one_takes_no_long(threads_as_ranks, monkeypatch):
    """Two ranks each on three hosts: the second ones have no part."""
    monkeypatch.setattr(network, "SIZES", (1 << 16, 1 << 18, 1 << 20, 1 << 22))
    monkeypatch.setattr(network, "LONG_ENOUGH", 0.05)
    hosts, firsts = {rank: f"node{rank // 2}" for rank in range(6)}, [0, 2, 4]
    began = time.monotonic()
    received = threads_as_ranks(6, lambda rank: measure_links(rank, firsts, PROCESSOR), {2: 1e6})
    assert time.monotonic() - began < 3  # the largest transfer alone would take 4 s on each of two links
    assert received[1] == received[3] == received[5] == {}
    rates = name_rates(hosts, received)
    assert len(rates) == 6
    slow = {link: rate for link, rate in rates.items() if rate < 10}
    assert set(slow) == {("node1", "node2"), ("node1", "node0")}
    assert all(0.2 < rate < 1.1 for rate in slow.values())
    (found,) = network.check_links(rates)
    assert found.hosts == ["node1"]
