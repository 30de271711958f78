import gzip
import json

import numpy as np
from safetensors.numpy import load_file

from pretrain.config import PretrainConfig
from pretrain.run import TRACE, WAIT, WARM_UP, pretrain

STEPS = 2


def test_a_profiled_run_ends_with_the_same_weights_and_a_trace(make_model, tiny_corpus, tmp_path):
    total = WAIT + WARM_UP + STEPS + 1

    def train(name, **more):
        common = {"max_steps": total, "eval_pairs": 0, "log_steps": 4, "global_batch_size": 8, "micro_batch_size": 4}
        known = {"corpus": str(tiny_corpus), "model": str(model), "output_dir": str(tmp_path / name)}
        pretrain(PretrainConfig(**known, **common, max_length=48, precision="fp32", peak_tflops=1.0, **more))
        return load_file(str(tmp_path / name / f"checkpoints/step-{total:08d}/weights.safetensors"))

    model = make_model()
    plain, profiled = train("plain"), train("profiled", profile=STEPS)
    assert not (tmp_path / "plain" / TRACE).exists()
    assert plain.keys() == profiled.keys()
    assert all(np.array_equal(plain[name], profiled[name]) for name in plain)
    events = json.loads(gzip.decompress((tmp_path / "profiled" / TRACE).read_bytes()))["traceEvents"]
    assert {f"ProfilerStep#{WAIT + WARM_UP + step}" for step in range(STEPS)} <= {event["name"] for event in events}
    lines = [json.loads(line) for line in (tmp_path / "profiled/metrics.jsonl").read_text().splitlines()]
    assert all(line["mfu_percent"] > 0 and line["token_imbalance"] == 1 for line in lines)
