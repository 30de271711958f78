"""Facts of three hosts of which one differs: each check names that host and says what to do; no other check speaks."""

from dataclasses import asdict, replace

import pytest
import torch

from data_pipeline.manifest import ShardInfo
from pretrain.config import PretrainConfig
from pretrain.engine.world import World
from pretrain.preflight import checks
from pretrain.preflight import facts as facts_of_host
from pretrain.preflight.corpora import HASHED, check_corpora, choose_sample
from pretrain.preflight.facts import Facts, collect_facts
from pretrain.preflight.network import check_links, check_reach, pair_up
from pretrain.preflight.report import Report, format_verdict

VERSIONS = {"torch": "2.13.0", "numpy": "2.4.6"}
SETTINGS = {"--seed": 1, "--objective": "ssp"}
MUST_MATCH_ACROSS_RANKS = {"versions": VERSIONS, "settings": SETTINGS}


def make_facts(count=3, ranks=2):
    """So many hosts with so many ranks each, all alike."""
    one = Facts(
        host="node0",
        machine="",
        rank=0,
        local_rank=0,
        alike=MUST_MATCH_ACROSS_RANKS,
        device="NVIDIA H100",
        device_bytes=(80 * 10**9, 79 * 10**9),
        disks=[("--output_dir", "/runs", 10**12, 10**9)],
        refused="",
        descriptors=1 << 20,
    )
    return [replace(one, host=f"node{r // ranks}", rank=r, local_rank=r % ranks) for r in range(count * ranks)]


def judge(facts):
    """What is said of these facts, and the findings."""
    report = Report(1, facts)
    found = [f for check in checks.ADVICE for f in checks.check_alike(check, report.hosts)]
    found += checks.check_devices(facts) + checks.check_disks(report.hosts) + checks.check_names(facts)
    report.findings = found + checks.check_descriptors(report.hosts, len(facts))
    return format_verdict(report).split(" (not")[0], report.findings


def fail(number):
    raise RuntimeError("CUDA error: uncorrectable ECC error")


def change(facts, host, **values):
    return [replace(one, **values) if one.host == host else one for one in facts]


def test_hosts_that_are_alike_are_ready():
    assert judge(make_facts()) == ("READY", [])


@pytest.mark.parametrize(
    ("values", "check", "text"),
    [
        (
            {"alike": {**MUST_MATCH_ACROSS_RANKS, "versions": {**VERSIONS, "numpy": "1"}}},
            "versions",
            "numpy is 1, and 2.4.6 on node0, n",
        ),
        (
            {"alike": {**MUST_MATCH_ACROSS_RANKS, "versions": {"torch": "2.13.0"}}},
            "versions",
            "numpy is not installed, and 2.4.6 on node",
        ),
        (
            {"alike": {**MUST_MATCH_ACROSS_RANKS, "settings": {**SETTINGS, "--seed": 2}}},
            "settings",
            "--seed is 2, and 1 on node0, node2",
        ),
        ({"device": "NVIDIA A100"}, "devices", "NVIDIA A100, and NVIDIA H100 on node0, node2"),
        ({"device_bytes": (80 * 10**9, 60 * 10**9)}, "devices", "20 GB are in use"),
        ({"disks": [("--output_dir", "/runs", 10**6, 10**9)]}, "disk", "--output_dir, /runs, has 1 MB free, below"),
        ({"disks": [("shared memory", "/dev/shm", 64e6, 512e6)]}, "disk", "--shm-size"),
        ({"refused": "--output_dir /runs cannot be written"}, "disk", "--output_dir /runs cannot be written"),
        ({"descriptors": 400}, "descriptors", "may open 400 files, and needs 560 with 6 ranks"),
    ],
)
def test_the_host_that_differs_is_named(values, check, text):
    said, found = judge(change(make_facts(), "node1", **values))
    assert {(finding.check, *finding.hosts) for finding in found} == {(check, "node1")}
    assert text in found[0].text
    assert said == f"NOT READY: {check}, on node1"


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


def test_clocks():
    assert checks.check_clocks({"node0": 0.0, "node1": 0.4, "node2": -0.3}) == []
    (behind,) = checks.check_clocks({"node0": 0.0, "node1": -300.0, "node2": 0.0})
    assert (behind.hosts, behind.text[:40]) == (["node1"], "its clock is -300 s from that of node0: ")


def test_a_slow_link_is_laid_at_the_end_that_is_slow():
    """Of three hosts; of two nobody knows, and both are named."""
    links = [(f"node{a}", f"node{b}") for a, b in pair_up([0, 1, 2])]
    assert check_links(dict.fromkeys(links, 900.0)) == []
    (sends,) = check_links({link: 1.2 if link[0] == "node1" else 900.0 for link in links})
    assert (sends.hosts, sends.text.startswith("it sends 1.2 MB/s, below 50 MB/s: ")) == (["node1"], True)
    (receives,) = check_links({link: 1.2 if link[1] == "node1" else 900.0 for link in links})
    assert (receives.hosts, receives.text.startswith("it receives 1.2 MB/s")) == (["node1"], True)
    (between,) = check_links({("node0", "node1"): 900.0, ("node1", "node0"): 1.2})
    assert between.hosts == ["node1", "node0"]
    assert "from node1 to node0 goes 1.2 MB/s, below" in between.text


def test_an_address_that_stands_for_itself_alone():
    addresses = {"node0": "10.0.0.1", "node1": "127.0.1.1", "node2": "10.0.0.3"}
    (found,) = check_reach(addresses, {"node0": ["node1"], "node1": [], "node2": ["node1"]})
    assert found.hosts == ["node1"]
    assert "not reached at 127.0.1.1 from node0, node2" in found.text
    assert "GLOO_SOCKET_IFNAME" in found.text


def test_corpora():
    def see(third="abc", wrong=()):
        views = [{"fingerprint": "abc", "wrong": []}, {"fingerprint": "abc", "wrong": wrong}]
        views += [{"fingerprint": third, "wrong": []}]
        return check_corpora({f"node{n}": {"corpora/docs": view} for n, view in enumerate(views)})

    assert see() == []
    (other,) = see("def")
    assert (other.check, other.hosts) == ("corpus", ["node2"])
    (missing,) = see(wrong=["shards/00001.arrow is missing", "x"])
    assert (missing.hosts, missing.text) == (["node1"], "shards/00001.arrow is missing (and 1 more)")


def test_of_a_large_corpus_some_shards_are_hashed():
    def count(size):
        return len(
            choose_sample([ShardInfo(f"shards/{n}.arrow", 1, 1, 1, 1, {}, int(size), "", "train") for n in range(5)])
        )

    assert [count(size) for size in (1e6, HASHED / 2.5, 2 * HASHED)] == [5, 2, 1]


def test_checkpoints_need_room():
    hosts = {"node0": replace(make_facts()[0], disks=[("--output_dir", "/runs", 7e9, 1e9)])}
    assert checks.check_room_for_checkpoints(hosts, 2, 20 * 10**8) == []
    (found,) = checks.check_room_for_checkpoints(hosts, 2, 248 * 10**7)
    assert "7 GB free, and 3 checkpoints of about 2.48 GB" in found.text


def test_a_check_has_a_line_and_each_finding_another(capsys):
    facts = change(make_facts(), "node1", descriptors=400)
    report = Report(0, facts)
    report.add("descriptors", checks.check_descriptors(report.hosts, 6))
    report.add("versions", [], "torch 2.13.0")
    line, below, last = capsys.readouterr().out.splitlines()
    assert line == "descriptors  FAILED  files and connections that a process may open"
    assert below.startswith("    node1: a process may open 400 files, and needs 560 with 6 ranks: raise ")
    assert last == "versions     ok      torch 2.13.0"
    assert "not looked at before that is mended: settings, devices, disk, clock, " in format_verdict(report)


def test_facts_of_this_host(tmp_path):
    facts = collect_facts(PretrainConfig(output_dir=str(tmp_path / "not/there/yet")))
    assert facts.alike["versions"]["torch"].startswith("2.")
    assert facts.alike["versions"]["kinspan's source"]
    assert facts.disks[0][2] > 0
    assert Facts(**asdict(facts)) == facts


def test_a_slow_device_is_to_be_known():
    (found,) = checks.check_speeds({"node0": 700.0, "node1": 300.0, "node2": 710.0})
    assert (found.hosts, found.fatal) == (["node1"], False)
