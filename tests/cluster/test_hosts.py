"""Training over two, three and four hosts, by each launcher: as on one host; and with a host that is cut off."""

import pytest

from pretrain.engine.watch import SILENCE, STATUS
from tests.chaos.materials import ROOT, Cell
from tests.chaos.starts import last_step
from tests.cluster.jobs import LAUNCHERS, SETTINGS, list_flags, run_here, run_on, start_on
from tests.cluster.jobs import materials as materials
from tests.cluster.namespaces import cut_link, find_obstacle, make_hosts, mend_link, time_ends
from tests.cluster.slurm import wait_until
from tests.pretrain.steps import read_log, read_weights, same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))]
ENTRY = str(ROOT / "launch/pretrain.py")
VICTIM = str(ROOT / "tests/chaos/victim.py")  # the same, with steps as slow as CHAOS_SLOW says
ENDED = SILENCE + 60.0  # seconds after a cut by which every rank and launcher has ended, on two busy cores
# But torchrun's agent on the host that is cut off: it asks the store on another host, and waits for as long as the
# system tries to send. That is a quarter of an hour by default, and 100 s with this.
AGENT_ENDED = 240.0
GIVE_UP = "sysctl -qw net.ipv4.tcp_retries2=8"


@pytest.fixture(scope="module")
def make_settings(materials):
    def make(output, **changes):
        return materials.settings(Cell(), output, **{**SETTINGS, **changes})

    return make


@pytest.fixture(scope="module")
def on_one_host(make_settings, tmp_path_factory):
    """``on_one_host(world)``: the folder of a run of so many ranks on one host."""
    made = {}

    def run(world):
        if world not in made:
            folder = tmp_path_factory.mktemp(f"one-host-{world}")
            run_here([ENTRY, *list_flags(make_settings(folder / "run"))], world, folder)
            made[world] = folder / "run"
        return made[world]

    return run


@pytest.mark.parametrize(("launcher", "count"), [*((name, 2) for name in LAUNCHERS), ("plain", 3), ("torchrun", 4)])
def test_hosts_train_as_one_host_does(launcher, count, make_settings, on_one_host, tmp_path):
    reference = on_one_host(count)
    with make_hosts(count, tmp_path) as hosts:
        statuses, said = run_on(hosts, [ENTRY, *list_flags(make_settings(tmp_path / "run"))], launcher, tmp_path)
    assert not any(statuses), "\n".join(said)
    assert read_log(tmp_path / "run", "train", "step", "loss") == read_log(reference, "train", "step", "loss")
    assert same(*(read_weights(folder, SETTINGS["max_steps"]) for folder in (tmp_path / "run", reference)))


@pytest.mark.parametrize(("launcher", "lost"), [("plain", 2), ("plain", 0), ("torchrun", 1), ("deepspeed", 1)])
def test_a_host_that_is_cut_off_is_named_and_the_others_go_on(launcher, lost, make_settings, on_one_host, tmp_path):
    """Every process ends within a bounded time; started again without the host the run ends as it would have."""
    count, program = 3, [VICTIM, *list_flags(make_settings(tmp_path / "run"))]
    with make_hosts(count, tmp_path) as hosts:
        harm = {"first": {hosts[lost].name: [GIVE_UP]}} if launcher == "torchrun" else {}
        with start_on(hosts, program, launcher, tmp_path, {"CHAOS_SLOW": "0.3"}, **harm) as (started, logs):
            wait_until(lambda: last_step(tmp_path / "run") >= 6, 180.0, "step 6 did not come")
            cut_link(hosts[lost])
            ends = time_ends(started, AGENT_ENDED if launcher == "torchrun" else ENDED)
            statuses = [process.poll() for process in started]
        said = "\n".join(log.read_text(errors="replace") for log in logs)
        print(f"{launcher}: ended {[round(end) for end in ends]} s after the cut, with {statuses}")
        assert all(statuses)
        assert all(end < ENDED for number, end in enumerate(ends) if launcher != "torchrun" or number != lost)
        assert f"on {hosts[lost].name}) has given no sign of life for {SILENCE:.0f} s, as seen from node" in said
        if launcher == "plain":
            assert statuses == [STATUS] * count
        others = [host for host in hosts if host != hosts[lost]]
        assert last_step(tmp_path / "run") < SETTINGS["max_steps"]
        statuses, said = run_on(others, program, "plain", tmp_path)
        mend_link(hosts[lost])
    assert statuses == [0, 0], said
    runs = (on_one_host(count), tmp_path / "run")
    whole, resumed = (dict(read_log(folder, "train", "step", "loss")) for folder in runs)
    assert whole.keys() == resumed.keys()
    assert [resumed[step] for step in whole] == pytest.approx(list(whole.values()), rel=1e-5)
