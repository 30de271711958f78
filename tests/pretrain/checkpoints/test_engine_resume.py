"""Stop and resume in the real DeepSpeed engine, in this process: bit-identical, and what is shared stays shared."""

import pytest

from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer, full_weights
from pretrain.modeling.losses import LossWeights
from tests.cases import mark_slow
from tests.pretrain.steps import make_run, same, start_engine, take_step

STAGES = mark_slow(("zero0", "zero1", "zero2", "zero3", "offload"), ("zero2",))


@pytest.fixture
def started(tmp_path, make_model, tiny_corpus):
    """``started(stage, **settings)``: the set-up of a run with dropout and its engine, made anew each time."""
    models = {}

    def start(stage, family="electra", name="run", **settings):
        model = models.setdefault(family, make_model(family))
        settings = {"generator": "1/2", "max_steps": 50, "deepspeed_config": f"ds_configs/{stage}.json", **settings}
        return start_engine(make_run(tiny_corpus, model, tmp_path / name, **settings))

    return start


def train(setup, engine, first, end):
    weights = LossWeights(pair=setup.config.pair_weight)
    return [take_step(setup, engine, step, weights) for step in range(first, end)][-1].sums


def stopped_and_resumed(started, stage, tmp_path, background=True, **settings):
    """The weights after 6 steps, and after 3, a checkpoint, and 3 more in a new engine; and that set-up and engine."""
    setup, engine = started(stage, **settings)
    train(setup, engine, 0, 3)
    writer = Writer(tmp_path / "checkpoints", rank=0, background=background)
    writer.save(engine, {"step": 3, "world_size": 1})
    train(setup, engine, 3, 6)  # a checkpoint written meanwhile holds step 3 all the same
    assert writer.finish() is None
    whole = full_weights(engine)
    setup, engine = started(stage, **settings)
    load_checkpoint(engine, tmp_path / "checkpoints/step-00000003", 1)
    train(setup, engine, 3, 6)
    return whole, full_weights(engine), setup, engine


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("sharing", ["none", "tied", "disentangled"])
def test_replaced_token_detection_resumes_bit_identical_and_stays_shared(sharing, stage, started, tmp_path):
    whole, resumed, _, engine = stopped_and_resumed(started, stage, tmp_path, embedding_sharing=sharing)
    assert same(whole, resumed)
    generator, classifier = engine.module.generator, engine.module.classifier
    words = generator.electra.embeddings.word_embeddings.weight
    assert generator.generator_lm_head.weight is words
    own = classifier.electra.embeddings
    if sharing == "tied":
        for name, parameter in generator.electra.embeddings.named_parameters():
            assert own.get_parameter(name) is parameter, name
    elif sharing == "disentangled":
        assert own.word_embeddings.shared is words
