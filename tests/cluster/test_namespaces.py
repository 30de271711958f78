"""The hosts that other tests run on: they have names and addresses, reach one another, and leave nothing behind."""

import subprocess

import pytest

from tests.cluster.namespaces import (
    MADE,
    command_on,
    cut_link,
    fill_disk,
    find_obstacle,
    make_hosts,
    mend_link,
    show_instead,
    slow_link,
)

pytestmark = pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))


def run_on(host, command, **options):
    return subprocess.run(command_on(host, "bash", "-c", command, **options), capture_output=True, text=True)


def reach(one, other):
    """Whether a connection is answered, be it by a refusal."""
    done = run_on(one, f"timeout 1 bash -c ': < /dev/tcp/{other.name}/9'")
    return "refused" in done.stderr


def test_hosts_have_names_links_and_files_of_their_own_and_leave_nothing(tmp_path):
    (tmp_path / "seen").write_text("by all")
    (tmp_path / "other").write_text("by one")
    (tmp_path / "disk").mkdir()
    with make_hosts(3, tmp_path) as hosts:
        namespaces = [MADE / host.namespace for host in hosts]
        assert [run_on(host, "hostname").stdout.split() for host in hosts] == [["node0"], ["node1"], ["node2"]]
        assert reach(hosts[0], hosts[1])
        assert reach(hosts[1], hosts[2])
        cut_link(hosts[2])
        assert not reach(hosts[1], hosts[2])
        assert reach(hosts[0], hosts[1])
        mend_link(hosts[2])
        slow_link(hosts[1], "10mbit")
        first = [show_instead(tmp_path / "seen", tmp_path / "other"), fill_disk(tmp_path / "disk")]
        look = f"cat {tmp_path}/seen; echo; df --output=size {tmp_path}/disk | tail -n 1"
        assert run_on(hosts[0], look, first=first).stdout.split() == ["by", "one", "1024"]
        assert run_on(hosts[1], look).stdout.startswith("by all")
        assert "10Mbit" in run_on(hosts[1], "tc qdisc show dev eth0").stdout
        left = subprocess.Popen(command_on(hosts[0], "sleep", "100"))
    assert left.wait(10) == -9
    assert not any(path.exists() for path in namespaces)
    assert subprocess.run(["hostname"], capture_output=True, text=True).stdout.strip() != "node0"
