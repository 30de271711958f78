"""Preflight over hosts of which one has something wrong: it names that host."""

import shutil

import pytest

from tests.chaos.materials import ROOT, Cell
from tests.cluster.jobs import LAUNCHERS, SETTINGS, list_flags, run_on
from tests.cluster.jobs import materials as materials
from tests.cluster.namespaces import fill_disk, find_obstacle, make_hosts, show_instead, slow_link

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))]
ENTRY = str(ROOT / "launch/preflight.py")


@pytest.fixture
def fly(materials, tmp_path):
    """``fly(count, launcher, harm)``: the statuses of preflight on so many hosts, and what it said.

    harm: takes the hosts and the settings, and returns what run_on takes
    """

    def run(count=2, launcher="plain", harm=lambda hosts, settings: {}):
        (tmp_path / "output").mkdir(exist_ok=True)
        settings = materials.settings(Cell(), tmp_path / "output", **SETTINGS)
        with make_hosts(count, tmp_path) as hosts:
            more = harm(hosts, settings)
            statuses, said = run_on(hosts, [ENTRY, *list_flags(settings)], launcher, tmp_path, **more)
        print("\n".join(said))
        assert "Traceback" not in "".join(said)
        return statuses, "\n".join(said)

    return run


def miss_a_shard(hosts, settings):
    target = settings["output_dir"].parent / "shards"
    shutil.copytree(settings["corpus"] / "shards", target)
    sorted(target.iterdir())[1].unlink()
    return {"first": {"node1": [show_instead(settings["corpus"] / "shards", target)]}}


def have_another_version(hosts, settings):
    folder = settings["output_dir"].parent / "other"
    (folder / "numpy-2.4.5.dist-info").mkdir(parents=True)
    (folder / "numpy-2.4.5.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.4.5\n")
    return {"before": {"node1": ["env", f"PYTHONPATH={folder}:{ROOT}"]}}


def have_a_full_disk(hosts, settings):
    return {"first": {"node1": [fill_disk(settings["output_dir"])]}}


def have_a_slow_link(hosts, settings):
    slow_link(hosts[1], "10mbit")
    return {}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_hosts_with_nothing_wrong_are_ready(launcher, fly, tmp_path):
    statuses, said = fly(2, launcher)
    assert not any(statuses)
    assert "READY" in said
    assert "NOT READY" not in said
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize(
    ("harm", "count", "line"),
    [
        (have_another_version, 2, "node1: numpy is 2.4.5, elsewhere"),
        *[(miss_a_shard, 2, "node1: {corpus}/shards/00001.arrow"), (have_a_full_disk, 2, "node1: {output} has ")],
        (have_a_slow_link, 3, "network: "),
    ],
)
def test_the_host_with_something_wrong_is_named(harm, count, line, fly, materials, tmp_path):
    statuses, said = fly(count, harm=harm)
    assert statuses == [2] * count
    lines = said.splitlines()
    (end,) = (number for number, text in enumerate(lines) if text == "NOT READY")
    assert lines[end - 1].startswith(line.format(corpus=materials.corpus, output=tmp_path / "output"))
