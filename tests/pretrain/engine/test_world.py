"""The world as each launcher describes it. The variables were recorded from ranks that the launchers started."""

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine.world import World, expand_counts, find_first_host, read_world

# Slurm 22.05: srun, the last of seven tasks on three machines.
SRUN = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "7"}
SRUN |= {"SLURM_STEP_TASKS_PER_NODE": "3(x2),1", "SLURM_STEP_NODELIST": "node[01-02,07]", "SLURM_NTASKS": "7"}
SRUN |= {"SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
TORCHRUN |= {"MASTER_ADDR": "node01", "MASTER_PORT": "41763", "TORCHELASTIC_RUN_ID": "41"}
DEEPSPEED = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0"}
DEEPSPEED |= {"CROSS_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, World(0, 0, 1, 1, "127.0.0.1", None)),
        (TORCHRUN, World(3, 1, 4, 2, "node01", "41763")),
        ({**SRUN, **TORCHRUN}, World(3, 1, 4, 2, "node01", "41763")),  # srun started the launcher
        ({**DEEPSPEED, "CROSS_SIZE": "2"}, World(1, 1, 2, 2, "127.0.0.1", "29500")),
        ({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"}, World(6, 0, 7, 1, "10.0.0.1", "5000")),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, World()),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node[1-2]"}, World()),
    ],
)
def test_the_world_of_each_launcher(variables, world):
    assert read_world(variables) == world


def test_a_task_of_srun_is_a_rank_and_the_first_machine_is_where_they_meet():
    world = read_world(SRUN)
    assert world[:5] == (6, 0, 7, 1, "node01")
    other = read_world({**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"})
    assert other[:5] == (1, 1, 7, 3, "node01")
    assert other.port == world.port
    assert 10_000 <= int(world.port) < 32_768  # Linux gives out the others by itself
    assert read_world({**SRUN, "SLURM_JOB_ID": "42"}).port != world.port


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        *[({"RANK": "x"}, "RANK"), ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2")],
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "rank -1 of 2"),
        ({"RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "local rank 1"),
        ({**SRUN, "SLURM_STEP_NODELIST": ""}, "export MASTER_ADDR="),
        ({**SRUN, "SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
    ],
)
def test_a_world_that_cannot_be_is_one_line(variables, text):
    with pytest.raises(KinspanError, match=text) as caught:
        read_world(variables)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        *[("login,node[1-2]", "login"), ("node[01-03,07]", "node01"), ("a[8-10],b,c-1[1,3]", "a8")],
        ("r[1-2]n[09-10].cluster", "r1n09.cluster"),
    ],
)
def test_lists_of_machines(text, host):
    assert find_first_host(text) == host
    assert expand_counts("8(x2),4,1(x3)") == [8, 8, 4, 1, 1, 1]
