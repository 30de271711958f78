"""DeepSpeed with a plain model of ``transformers``: padded to the longest, logits at every position."""

import torch

from .case import CLIP, RATE, Case, open_stream, pad_rows, split_rows
from .plain import load_plain, read_losses
from .turns import Turn


def train(case: Case, turn: Turn) -> None:
    from pretrain.engine.engine import start_distributed

    start_distributed()
    import deepspeed

    model = load_plain(case)
    bf16 = case.precision == "bf16"
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    settings = {
        "train_micro_batch_size_per_gpu": case.pairs,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIP,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": 1 if bf16 else 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    engine.train()
    stream = open_stream(case)
    for step in range(case.rounds + 1):
        batch = stream.batch(step * case.pairs, case.pairs)
        inputs = pad_rows(split_rows(batch), model.masked_lm.config.pad_token_id)
        turn.begin()
        inputs = {name: value.to(engine.device) for name, value in inputs.items()}
        engine.backward(engine(**inputs)["loss"])
        engine.step()
        turn.end(batch.num_tokens, read_losses(model))
