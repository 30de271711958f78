"""Facts of three hosts of which one differs: each check names that host and says what to do; no other check speaks."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.manifest import ShardInfo
from pretrain.config import PretrainConfig
from pretrain.preflight import checks
from pretrain.preflight import facts as facts_of_host
from pretrain.preflight.corpora import HASHED, check_corpora, choose_sample
from pretrain.preflight.facts import CACHE, OUTPUT, SHARED_MEMORY, Facts, collect_facts
from pretrain.preflight.network import check_links, check_reach, pair_up
from pretrain.preflight.report import CHECKS, find_odd, format_check, format_hosts, format_verdict
from pretrain.preflight.steps import check_steps
from pretrain.runtime.world import World


def make_facts(count=3, ranks=2):
    """So many hosts with so many ranks each, all alike."""
    one = Facts(
        host="node0",
        rank=0,
        local_rank=0,
        versions={"torch": "2.13.0", "numpy": "2.4.6"},
        device="NVIDIA H100",
        device_bytes=(80 * 10**9, 79 * 10**9),
        cores=16,
        disks={OUTPUT: ("/runs", 10**12), CACHE: ("/cache", 10**11)},
        descriptors=1 << 20,
        settings={"seed": 1, "objective": "ssp"},
    )
    return [replace(one, host=f"node{r // ranks}", rank=r, local_rank=r % ranks) for r in range(count * ranks)]


def judge(facts):
    every = (checks.check_versions, checks.check_settings, checks.check_devices, checks.check_disks)
    return [f for check in (*every, checks.check_descriptors) for f in check(facts)]


def fail(number):
    raise RuntimeError("CUDA error: uncorrectable ECC error")


def change(facts, host, **values):
    return [replace(one, **values) if one.host == host else one for one in facts]


def test_hosts_that_are_alike_are_ready():
    assert judge(make_facts()) == []
    assert format_verdict([], CHECKS) == "READY"


@pytest.mark.parametrize(
    ("values", "check", "text"),
    [
        ({"versions": {"torch": "2.13.0", "numpy": "2.4.5"}}, "versions", "numpy is 2.4.5, and 2.4.6 on node0, node2"),
        ({"versions": {"torch": "2.13.0"}}, "versions", "numpy is not installed, and 2.4.6 on node0, node2"),
        ({"settings": {"seed": 2, "objective": "ssp"}}, "settings", "--seed is 2, and 1 on node0, node2"),
        ({"device": "NVIDIA A100"}, "devices", "NVIDIA A100, and NVIDIA H100 on node0, node2"),
        ({"device_bytes": (80 * 10**9, 60 * 10**9)}, "devices", "20 GB are in use"),
        (
            {"disks": {OUTPUT: ("/runs", 10**6), CACHE: ("/cache", 10**11)}},
            "disk",
            "--output_dir, /runs, has 1 MB free",
        ),
        ({"disks": {SHARED_MEMORY: ("/dev/shm", 64 << 20)}}, "disk", "--shm-size"),
        ({"descriptors": 400}, "descriptors", "may open 400 files, and needs 560 with 6 ranks"),
    ],
)
def test_the_host_that_differs_is_named(values, check, text):
    found = judge(change(make_facts(), "node1", **values))
    assert {(finding.check, *finding.hosts) for finding in found} == {(check, "node1")}
    assert text in found[0].text
    assert all(finding.fatal for finding in found)
    assert format_verdict(found, CHECKS) == f"NOT READY: {check}, on node1"


def test_fewer_cores_are_to_be_known_and_in_nobodys_way():
    found = judge(change(make_facts(), "node2", cores=1))
    assert [(f.hosts, f.fatal) for f in found] == [(["node2"], False)]
    assert format_verdict(found, CHECKS) == "READY"


def test_of_two_hosts_both_values_are_said():
    (found,) = checks.check_versions(change(make_facts(2), "node1", versions={"torch": "2.12.0", "numpy": "2.4.6"}))
    assert found.hosts == ["node1"]
    assert "torch is 2.12.0, and 2.13.0 on node0" in found.text


def test_machines_of_one_name_are_not_taken_for_one():
    facts = make_facts()
    assert checks.check_names(facts) == []
    facts = [replace(one, host="ubuntu", machine=f"boot {one.rank // 2}") for one in facts]
    (found,) = checks.check_names(facts)
    assert (found.hosts, found.fatal) == (["ubuntu"], True)
    assert "3 machines have this name" in found.text


@pytest.mark.parametrize(
    ("count", "free", "text"),
    [
        (1, lambda number: (1, 2), "no GPU of its own, since its local rank is 3 and it sees 1"),
        (4, fail, "a GPU that fails (CUDA error: uncorrectable ECC error)"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_no_traceback(count, free, text, monkeypatch, tmp_path):
    for name, value in {"is_available": True, "device_count": count, "mem_get_info": None}.items():
        monkeypatch.setattr(torch.cuda, name, free if value is None else lambda value=value: value)
    monkeypatch.setattr(facts_of_host, "find_versions", dict)
    monkeypatch.setattr(facts_of_host, "read_world", lambda variables: World(3, 3, 8, 8, port="1"))
    (found,) = checks.check_devices([collect_facts(PretrainConfig(output_dir=str(tmp_path)))])
    assert f"rank 3 computes with {text}" in found.text
    assert found.fatal


def test_the_odd_host_is_the_one_of_few():
    assert find_odd({"a": 1, "b": 2, "c": 2}) == (2, {"a": 1})


def test_clocks():
    assert checks.check_clocks({"node0": 0.0, "node1": 0.4, "node2": -0.3}) == []
    (ahead,) = checks.check_clocks({"node0": 0.0, "node1": 300.0, "node2": 0.0})
    assert (ahead.hosts, ahead.text[:28]) == (["node1"], "its clock is 300 s ahead: st")
    (first,) = checks.check_clocks({"node0": 0.0, "node1": 300.0, "node2": 300.1})
    assert (first.hosts, "300 s behind" in first.text) == (["node0"], True)
    (either,) = checks.check_clocks({"node0": 0.0, "node1": -90.0})
    assert "90 s behind of that of node0" in either.text


def test_a_slow_link_is_laid_at_the_end_that_is_slow():
    """Of three hosts; of two nobody knows, and both are named."""
    links = [(f"node{a}", f"node{b}") for a, b in pair_up([0, 1, 2])]
    fast = dict.fromkeys(links, 900.0)
    assert check_links(fast) == []
    (sends,) = check_links({link: 1.2 if link[0] == "node1" else rate for link, rate in fast.items()})
    assert (sends.hosts, sends.text.startswith("it sends 1.2 MB/s, below 50 MB/s: ")) == (["node1"], True)
    (receives,) = check_links({link: 1.2 if link[1] == "node1" else rate for link, rate in fast.items()})
    assert (receives.hosts, receives.text.startswith("it receives 1.2 MB/s")) == (["node1"], True)
    (between,) = check_links({("node0", "node1"): 900.0, ("node1", "node0"): 1.2})
    assert between.hosts == ["node1", "node0"]
    assert "from node1 to node0 goes 1.2 MB/s, below" in between.text
    assert all(found.fatal for found in (sends, receives, between))
    (beside,) = check_links({link: 200.0 if link[0] == "node1" else rate for link, rate in fast.items()})
    assert (beside.hosts, beside.fatal) == (["node1"], False)
    assert "it sends 200 MB/s, and 900 MB/s is usual here: " in beside.text


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 64])
def test_of_many_hosts_most_links_are_measured_at_once(count):
    """A host has part in one link at a time, in the order of the list."""
    links = pair_up(list(range(count)))
    assert len({*links}) == len(links)
    assert [sum(sender == host for sender, _ in links) for host in range(count)] == [min(count - 1, 2)] * count
    turns = dict.fromkeys(range(count), 0)
    for link in links:
        turns |= dict.fromkeys(link, 1 + max(turns[end] for end in link))
    assert max(turns.values()) <= 7


def test_an_address_that_stands_for_itself_alone():
    addresses = {"node0": "10.0.0.1", "node1": "127.0.1.1", "node2": "10.0.0.3"}
    (found,) = check_reach(addresses, {"node0": ["node1"], "node1": [], "node2": ["node1"]})
    assert found.hosts == ["node1"]
    assert "not reached at 127.0.1.1 from node0, node2" in found.text
    assert "GLOO_SOCKET_IFNAME" in found.text


def view(fingerprint="abc", wrong=()):
    return {"corpora/docs": {"fingerprint": fingerprint, "wrong": list(wrong), "hashed": 3}}


def test_corpora():
    facts = make_facts(3, 1)
    assert check_corpora(facts, [view(), view(), view()]) == []
    (other,) = check_corpora(facts, [view(), view(), view("def")])
    assert (other.check, other.hosts) == ("corpus", ["node2"])
    (missing,) = check_corpora(facts, [view(), view(wrong=["shards/00001.arrow is missing", "x"]), view()])
    assert missing.hosts == ["node1"]
    assert "shards/00001.arrow is missing (and 1 more)" in missing.text
    absent = check_corpora(facts, [view(None, wrong=["no corpus at corpora/docs"])] * 3)
    assert [finding.hosts for finding in absent] == [["node0"], ["node1"], ["node2"]]


def test_of_a_large_corpus_some_shards_are_hashed_and_the_same_on_every_host():
    def make(size, count=5):
        return [ShardInfo(f"shards/{n}.arrow", 1, 1, 1, 1, {}, int(size), "") for n in range(count)]

    assert {info.file for info in choose_sample(make(1e6))} == {info.file for info in make(1e6)}
    assert len(choose_sample(make(HASHED / 2.5))) == 2
    assert len(choose_sample(make(2 * HASHED))) == 1
    assert choose_sample(make(2 * HASHED)) == choose_sample(make(2 * HASHED)[::-1])


def test_checkpoints_need_room():
    facts = change(make_facts(), "node0", disks={OUTPUT: ("/runs", 7 * 10**9)})
    assert checks.check_room_for_checkpoints(facts, 10**8, 2, 20) == []
    (found,) = checks.check_room_for_checkpoints(facts, 124 * 10**6, 2, 20)
    assert "7 GB free, and 3 checkpoints of about 2.48 GB" in found.text


def test_the_cache_of_remote_corpora_needs_the_room_that_it_was_given():
    config = PretrainConfig(corpus=["s3://bucket/wiki"], cache_gb=200)
    assert [f.hosts for f in checks.check_room_for_cache(config, make_facts())] == [["node0"], ["node1"], ["node2"]]
    assert checks.check_room_for_cache(PretrainConfig(corpus=["wiki"], cache_gb=200), make_facts()) == []


def test_steps():
    hosts = {0: "node0", 1: "node1"}
    good = {"parameters": 10**8, "tflops": 1.0, "seconds": 1.0, "tokens": 100, "steps": 10, "finite": True}
    assert check_steps([good, good], hosts, 10_000.0) == []
    (refused,) = check_steps([{"error": "too little memory"}, {"error": "too little memory"}], hosts, None)
    assert (refused.check, refused.hosts, refused.text) == ("steps", ["node0", "node1"], "too little memory")
    (slow,) = check_steps([good, good], hosts, 400.0)
    assert (slow.check, slow.fatal) == ("bandwidth", False)
    (bad,) = check_steps([good, {**good, "finite": False}], hosts, None)
    assert (bad.hosts, bad.fatal) == (["node1"], False)


def test_a_slow_device_is_to_be_known():
    (found,) = checks.check_speeds({"node0": 700.0, "node1": 300.0, "node2": 710.0})
    assert (found.hosts, found.fatal) == (["node1"], False)


def test_a_check_has_a_line_and_each_finding_another():
    found = checks.check_descriptors(change(make_facts(), "node1", descriptors=400))
    line, below = format_check("descriptors", "", found).splitlines()
    assert line == "descriptors  FAILED  files and connections that a process may open"
    assert below.startswith("    node1: a process may open 400 files, and needs 560 with 6 ranks: raise ")
    assert format_check("versions", "torch 2.13.0", []) == "versions     ok      torch 2.13.0"
    left = "network, bandwidth, steps, speed"
    made = [check for check in CHECKS if check not in left]
    said = f"NOT READY: descriptors, on node1 (not looked at before that is mended: {left})"
    assert format_verdict(found, made) == said


def test_of_many_hosts_those_in_the_way_are_shown_first():
    facts = change(make_facts(30), "node17", descriptors=400)
    found = checks.check_descriptors(facts)
    head, *rows, more = format_hosts(facts, found, {"clock": {"node17": "+0.0 s"}}).splitlines()
    assert head.split() == ["host", "ranks", "device", "free", "memory", "free", "disk", "files", "clock"]
    assert rows[0].split() == [
        "node17",
        "34-35",
        "NVIDIA",
        "H100",
        "79",
        "of",
        "80",
        "GB",
        "1",
        "TB",
        "400",
        "+0.0",
        "s",
    ]
    assert len(rows) == 24
    assert more == "and 6 more"


def test_facts_of_this_host(tmp_path):
    facts = collect_facts(PretrainConfig(output_dir=str(tmp_path / "not/there/yet")))
    assert facts.versions["torch"].startswith("2.")
    assert facts.versions["kinspan's source"]
    assert facts.disks[OUTPUT][1] > 0
    assert Facts(**facts.as_dict()) == facts
    assert checks.check_versions([facts]) == []
