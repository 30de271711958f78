"""What the ranks send in an update, counted from the tensors given to collectives: the figures of docs/cluster.md."""

import json
import subprocess
import sys

import pytest

from tests.chaos.materials import ROOT
from tests.chaos.starts import environment
from tests.pretrain.steps import make_run

# A ring sends all bytes twice to add them up everywhere, once to collect them or to add up shares (less one share).
COUNTING = """
import json, sys
import torch.distributed as dist

sent = 0
def count(name, times, place):
    plain = getattr(dist, name)
    def call(*values, **named):
        global sent
        sent += times * [*values, *named.values()][place].nbytes
        return plain(*values, **named)
    setattr(dist, name, call)

for name, times, place in (("all_reduce", 2, 0), ("reduce", 1, 0), ("all_gather_into_tensor", 1, 0),
                           ("reduce_scatter_tensor", 1, 1)):
    count(name, times, place)
from pretrain import run
from pretrain.config import PretrainConfig

plain = run.train_step
def train_step(engine, *values, **named):
    before = sent
    outcome = plain(engine, *values, **named)
    if dist.get_rank() == 0:
        parameters = sum(p.numel() for p in engine.module.parameters())
        print("bytes", (sent - before) / parameters, file=sys.stderr)
    return outcome

run.train_step = train_step
run.pretrain(PretrainConfig(**json.loads(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "micro_batches", "expected"),
    [("zero1", 1, 10), ("zero1", 2, 10), ("slow_network", 2, 6), ("zero2", 1, 10), ("zero2", 2, 18)],
)
def test_bytes_for_each_parameter_and_update(file, micro_batches, expected, make_model, tiny_corpus, tmp_path):
    settings = {"max_steps": 2, "eval_pairs": 0, "precision": "bf16", "deepspeed_config": f"ds_configs/{file}.json"}
    settings |= {"global_batch_size": 8, "micro_batch_size": 4 // micro_batches}
    config = make_run(tiny_corpus, make_model(), tmp_path / "run", **settings)
    (tmp_path / "count.py").write_text(COUNTING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [tmp_path / "count.py", json.dumps(vars(config))]
    done = subprocess.run(command, env=environment(PYTHONPATH=str(ROOT)), cwd=ROOT, capture_output=True, text=True)
    counted = [float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("bytes ")]
    assert done.returncode == 0, done.stderr
    assert counted == pytest.approx([expected] * 2, rel=0.02)
