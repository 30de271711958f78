"""Stop and resume in the real DeepSpeed engine, in this process: bit-identical, and what is shared stays shared."""

import pytest

from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer, full_weights
from tests.cases import mark_slow
from tests.pretrain.steps import make_run, same, start_engine, take_step

STAGES = mark_slow(("zero0", "zero1", "zero2", "zero3", "offload"), ("zero2",))


def train(setup, engine, first, end):
    for step in range(first, end):
        take_step(setup, engine, step)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("sharing", ["none", "tied", "disentangled"])
def test_replaced_token_detection_resumes_bit_identical_and_stays_shared(
    sharing, stage, make_model, tiny_corpus, tmp_path
):
    """With dropout: the weights after 6 steps are those after 3, a checkpoint, and 3 more in a new engine."""
    settings = {"generator": "1/2", "embedding_sharing": sharing, "deepspeed_config": f"ds_configs/{stage}.json"}
    config = make_run(tiny_corpus, make_model("electra"), tmp_path / "run", max_steps=50, **settings)
    setup, engine = start_engine(config)
    train(setup, engine, 0, 3)
    writer = Writer(tmp_path / "checkpoints", rank=0, background=True)
    writer.save(engine, {"step": 3, "world_size": 1})
    train(setup, engine, 3, 6)  # a checkpoint written meanwhile holds step 3 all the same
    assert writer.finish() is None
    whole = full_weights(engine)
    setup, engine = start_engine(config)
    load_checkpoint(engine, tmp_path / "checkpoints/step-00000003", 1)
    train(setup, engine, 3, 6)
    assert same(whole, full_weights(engine))
    generator, classifier = engine.module.generator, engine.module.classifier
    words = generator.electra.embeddings.word_embeddings.weight
    assert generator.generator_lm_head.weight is words
    own = classifier.electra.embeddings
    if sharing == "tied":
        for name, parameter in generator.electra.embeddings.named_parameters():
            assert own.get_parameter(name) is parameter, name
    elif sharing == "disentangled":
        assert own.word_embeddings.shared is words
