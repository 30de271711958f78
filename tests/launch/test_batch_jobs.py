"""The scripts of batch jobs, with commands that stand in for Slurm's, ssh's and torchrun's.

tests/cluster has the same with a real Slurm.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pretrain.engine.loop import LoopState
from pretrain.engine.stop import Stopped

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "launch/slurm"
SCRIPTS = [*sorted(SLURM.iterdir()), *sorted((ROOT / "launch/hosts").iterdir())]


def test_scripts_pass_the_linter():
    subprocess.run([Path(sys.executable).with_name("shellcheck"), "-x", *SCRIPTS], check=True, cwd=ROOT)


def write_commands(folder, commands):
    """Programs that stand in for others; returns the environment that has them first."""
    folder.mkdir()
    for name, text in commands.items():
        (folder / name).write_text("#!/bin/bash\n" + text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def run_script(command, environment, folder, strike=None, pattern="", count=1):
    """How a script ends in ``folder``, and what it prints; ``strike`` is a signal to it, once so many files of that
    pattern are there."""

    def prepare():
        # Tests that a shell runs in the background are born deaf to Ctrl-C, which no trap of bash can undo.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    given = {"env": environment, "cwd": folder, "preexec_fn": prepare}
    process = subprocess.Popen(["bash", *command], stdout=subprocess.PIPE, text=True, **given)
    if strike:
        deadline = time.monotonic() + 50
        while len(list(folder.glob(pattern))) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(strike)
    output = process.communicate(timeout=60)[0]
    return process.returncode, output


@pytest.fixture
def stopped(caplog):
    """What a rank logs as it ends with status 75, which torchrun turns into 1."""
    named = {"progress": {"step": 5}, "request": {"reason": "SIGTERM"}, "writer": {"finish": lambda: None}}
    with caplog.at_level("INFO"), pytest.raises(Stopped):
        LoopState.stop(SimpleNamespace(saved_at=5, **{k: SimpleNamespace(**v) for k, v in named.items()}))
    return caplog.messages[-1]


# Slurm --------------------------------------------------------------------------------------------------------------

# srun says what ran would say, to the file of its --output, and ends as it would.
STAND_INS = {
    "srun": """
        for argument in "$@"; do [[ $argument == --output=* ]] && log=${argument#--output=}; done
        echo "$* in $NODE_ENVIRONMENT" >> calls
        echo -e "$SAID" > "${log//%?/0}"
        if [[ -n ${WAITS:-} ]]; then for n in $(seq 100); do [[ -e signalled ]] && break; sleep 0.1; done; fi
        exit $STATUS
    """,
    "scontrol": 'echo "scontrol $*" >> calls',
    "scancel": 'echo "scancel $*" >> calls; touch signalled; [[ -z ${TRIES:-} ]] || { sleep 1; touch late; }',
    "squeue": "echo ${STATE-RUNNING}",
}
REQUEUED = "scontrol requeue 7"


@pytest.fixture
def job(tmp_path):
    """``job(status, said="", **variables)``: how pretrain.sbatch ends where its ranks end so, and what it calls."""
    environment = write_commands(tmp_path / "bin", STAND_INS)
    (tmp_path / "launch").symlink_to(ROOT / "launch")
    given = {"SLURM_SUBMIT_DIR": tmp_path, "SLURM_JOB_ID": 7, "SLURM_JOB_NAME": "kinspan", "SLURM_NTASKS_PER_NODE": 2}
    given |= {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": 2, "SLURM_CPUS_ON_NODE": 8}

    def run(status, said="", strike=None, script="pretrain.sbatch", arguments=("--config", "my run.yaml"), **variables):
        (tmp_path / "calls").unlink(missing_ok=True)
        values = {**given, "STATUS": status, "SAID": said, **variables}
        variables = {**environment, **{name: str(value) for name, value in values.items()}}
        ended = run_script([SLURM / script, *arguments], variables, tmp_path, strike, "calls")
        return *ended, (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""

    return run


def test_a_complete_run_is_not_queued_again(job):
    status, _, calls = job(0)
    assert status == 0
    assert REQUEUED not in calls
    assert "--nodes=2 --ntasks-per-node=2 --ntasks=4 --cpus-per-task=4 --kill-on-bad-exit=0 --wait=60" in calls
    assert "launch/slurm/node.sh --config my run.yaml" in calls


def test_a_stopped_run_is_queued_again(job, stopped):
    for said, status in (("", 75), (stopped, 1)):
        ended, output, calls = job(status, said)
        assert ended == status
        assert REQUEUED in calls
        assert "was lost" not in output


@pytest.mark.parametrize(("launcher", "name"), [("srun", "USR1"), ("torchrun", "TERM"), ("deepspeed", "USR1")])
def test_the_signal_before_the_limit_reaches_the_ranks(job, launcher, name):
    _, output, calls = job(1, strike=signal.SIGUSR1, WAITS="yes", LAUNCHER=launcher)
    assert f"scancel --signal={name} 7" in calls
    assert REQUEUED in calls
    assert "asked to stop" in output


def test_a_signal_that_is_late_does_not_reach_the_next_start(job, tmp_path):
    """Slurm holds scancel up while it queues a job again, and the next start has the same number."""
    assert REQUEUED in job(75, strike=signal.SIGTERM, WAITS="yes", TRIES="yes")[2]
    time.sleep(1.5)
    assert not (tmp_path / "late").exists()


def test_what_slurm_has_decided_already_is_left_alone(job):
    """A job that was cancelled is not brought back to life."""
    assert REQUEUED not in job(75, STATE="CANCELLED")[2]
    assert REQUEUED not in job(75, STATE="")[2]


@pytest.mark.parametrize(
    ("status", "said"),
    [(2, "error: no such corpus"), (1, "  exitcode  : 2 (pid: 9)"), (70, "[rank 0] error: --wandb x: unreachable")],
)
def test_a_refused_run_is_not_queued_again(job, status, said):
    ended, output, calls = job(status, said)
    assert ended == 2
    assert REQUEUED not in calls
    assert "refused" in output
    if status == 2:
        assert "error: no such corpus" in output


def test_a_lost_rank_is_named_and_queued_again_as_long_as_the_run_comes_further(job):
    died = "[rank 0] error: rank 3 (process 9 on node2) has died, at step 8; the same command again goes on"
    status, output, calls = job(70, died)
    assert status == 70
    assert died in output
    assert REQUEUED in calls
    for start, step, queued in ((1, 8, True), (2, 16, True), (3, 16, True), (4, 16, False)):
        said = f"resuming from runs/x/checkpoints/step-{step:08d} at step {step}"
        _, output, calls = job(137, said, SLURM_RESTART_COUNT=start)
        assert (REQUEUED in calls) == queued
        assert ("came no further either" in output) != queued


def test_a_run_that_is_stopped_before_each_first_update_is_not_queued_for_ever(job, stopped):
    for start, step, queued in ((0, 0, True), (1, 0, True), (2, 0, False), (3, 5, True)):
        _, _, calls = job(75, stopped.replace("step 5", f"step {step}"), SLURM_RESTART_COUNT=start)
        assert (REQUEUED in calls) == queued


def test_an_array_runs_each_recipe_in_a_folder_of_its_own(job):
    """In the order of the folder; the array's range is theirs."""
    recipes = sorted((ROOT / "launch/recipes").glob("*-base-*.yaml"))
    assert f"#SBATCH --array=0-{len(recipes) - 1}\n" in (SLURM / "recipes.sbatch").read_text()
    for number in (0, len(recipes) - 1):
        given = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_JOB_ID": 7, "arguments": ["--model", "here"]}
        calls = job(75, script="recipes.sbatch", **given)[2]
        assert f"{REQUEUED}_{number}\n" in calls
        name = recipes[number].stem
        assert f"--config launch/recipes/{name}.yaml --output_dir runs/{name} --model here" in calls
    status, output, calls = job(0, script="recipes.sbatch", SLURM_ARRAY_TASK_ID=len(recipes))
    assert (status, calls) == (2, "")
    assert "there is no recipe number" in output


# Bare hosts ---------------------------------------------------------------------------------------------------------

OVER_SSH = {
    "ssh": """
        while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
        [[ $1 == gone ]] && exit 255
        shift
        exec bash -c "$*"
    """,
    "torchrun": """
        echo "torchrun $*"
        trap 'echo "stopped at step 3"; exit 1' TERM
        echo -e "$SAID"
        if [[ -n ${WAITS:-} ]]; then touch started-$$; for n in $(seq 600); do sleep 0.1; done; fi
        exit $STATUS
    """,
}


@pytest.fixture
def hosts(tmp_path):
    """``hosts(status, said="")``: how launch/hosts/pretrain.sh ends where torchrun ends so on two of three machines.

    strike: a signal to the script, once so many commands on machines have ``started``
    """
    environment = write_commands(tmp_path / "bin", OVER_SSH)
    (tmp_path / "hosts.txt").write_text("a slots=2\ngone slots=8\n# a remark\n\nb slots=1 # another")

    def run(status, said="", strike=None, started=1, arguments=(), **variables):
        variables = {**environment, "STATUS": str(status), "SAID": said, "RETRIES": "1", **variables}
        command = [ROOT / "launch/hosts/pretrain.sh", "hosts.txt", *arguments]
        ended = run_script(command, variables, tmp_path, strike, "started-*", started)
        return *ended, {path.name: path.read_text() for path in tmp_path.glob("logs/*/start-0/*.log")}

    return run


def test_a_machine_that_does_not_answer_is_left_out(hosts):
    status, output, logs = hosts(0, arguments=["--config", "my run.yaml", '--model=a"b'])
    assert status == 0
    assert "gone does not answer: going on without it" in output
    assert sorted(logs) == ["a.log", "b.log"]
    for name, slots in (("a", 2), ("b", 1)):
        assert f"--nnodes 2 --nproc-per-node {slots} " in logs[f"{name}.log"]
        assert "--rdzv-endpoint a:29500 " in logs[f"{name}.log"]
        assert '-m launch.pretrain --config my run.yaml --model=a"b' in logs[f"{name}.log"]


def test_a_lost_machine_is_named_and_the_others_start_again(hosts):
    died = "[default0]:[rank 0] error: rank 2 (process 5 on b) has given no sign of life for 60 s"
    status, output, _ = hosts(1, died)
    assert status == 70
    assert output.count("starting on a b") == 2
    assert died in output


def test_a_run_whose_hours_are_over_is_not_started_again(hosts, stopped):
    status, output, _ = hosts(1, f"[default0]:{stopped}")
    assert status == 75
    assert output.count("starting on a b") == 1


@pytest.mark.parametrize("strike", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_here_stops_every_machine(hosts, strike):
    status, output, logs = hosts(1, strike=strike, started=2, WAITS="yes")
    assert status == 75
    assert "stopped: the same command again goes on" in output
    assert len(logs) == 2
    assert all("stopped at step 3" in text for text in logs.values())


# Kubernetes ---------------------------------------------------------------------------------------------------------


def test_the_jobset_has_as_many_pods_as_its_ranks_wait_for():
    manifest = yaml.safe_load((ROOT / "launch/k8s/gpu/pretrain.yaml").read_text())
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (container,) = pod["containers"]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert str(job["parallelism"]) == str(job["completions"]) == values["NNODES"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == values["NPROC"]
    assert job["backoffLimit"] == 0
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert int(values["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
