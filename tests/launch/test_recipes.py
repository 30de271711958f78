"""The recipes of the papers: Di Liello et al., 2022, appendix B, and Rücklé et al., 2020, appendix A.1."""

from pathlib import Path

import pytest
import yaml

from data_pipeline.core.command_line import parse
from finetune.training.config import FinetuneConfig
from finetune.training.config import check as check_finetuning
from objectives import parse_mixture
from pretrain.config import PretrainConfig
from pretrain.engine.deepspeed_config import read_deepspeed_config
from pretrain.planning.checks import check

FOLDER = Path(__file__).resolve().parents[2] / "launch/recipes"
# Negatives of a question, where they are from, seeds, and the filter of dev and test: MultiCQA, sections 3.2 and 3.3
IN_DOMAIN = {
    "multicqa-las": (10, "corpus", 2, "no-all-negative"),
    "multicqa-insuranceqa": (1, "corpus", 2, "no-all-negative"),
    "multicqa-wikipassageqa": (10, "candidates", 2, "raw"),
    "multicqa-askubuntu": (1, "candidates", 5, "no-all-negative"),
    "multicqa-semeval": (None, None, 5, "raw"),
}
SINGLE = {p.stem for p in FOLDER.glob("*.yaml") if "rows" not in yaml.safe_load(p.read_text())}  # no studies
RECIPES = sorted(SINGLE - set(IN_DOMAIN))
PAPER = [f"{model}-base-{objective}" for model in ("roberta", "electra") for objective in ("ssp", "sp", "psd", "all")]
MULTICQA = ["multicqa", "multicqa-extended"]
ABLATIONS = [f"roberta-base-{objective}-mlm-only" for objective in ("ssp", "sp", "psd")]


def read(name):
    given = ["--adapters", "adapters/one", "adapters/other"] if name == "multicqa-fusion" else []
    return parse(PretrainConfig, "", argv=["--config", str(FOLDER / f"{name}.yaml"), *given])


def test_there_is_one_for_each_row_of_the_papers_tables():
    others = ["multicqa-adapters", "multicqa-fusion", "quickstart", "as2-mlm", "as2-ssp"]
    assert sorted([*PAPER, *ABLATIONS, *MULTICQA, *others]) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_can_be_read_and_meant(name):
    config = read(name)
    check(config)
    parse_mixture(config.objective, config.sampling)
    read_deepspeed_config(config.deepspeed_config)


@pytest.mark.parametrize("name", [*PAPER, *ABLATIONS])
def test_has_the_numbers_of_appendix_b(name):
    config = read(name)
    model, _, objective, *ablation = name.split("-")
    assert config.objective == objective
    assert config.global_batch_size == 4096
    assert (config.max_length, config.max_steps) == ((128, 400_000) if objective in ("ssp", "all") else (256, 200_000))
    assert config.max_length == parse_mixture(objective).max_length
    assert config.global_batch_size * config.max_length * config.max_steps == pytest.approx(210e9, rel=0.002)
    assert (config.learning_rate, config.warmup_steps) == (1e-4, 10_000)
    assert (config.weight_decay, config.max_grad_norm, config.mlm_probability) == (0.01, 1.0, 0.15)
    assert (config.mlm_weight, config.rtd_weight, config.pair_weight) == (1.0, 50.0, 0.0 if ablation else 1.0)
    assert config.sampling == "matched"
    if model == "electra":
        google = "google/electra-base-"
        assert (config.model, config.generator) == (f"{google}discriminator", f"{google}generator")
        assert config.token_loss == "rtd"
    else:
        assert (config.model, config.token_loss) == ("roberta-base", "mlm")


@pytest.mark.parametrize("name", MULTICQA)
def test_multicqa_has_the_numbers_of_its_appendix(name):
    config = read(name)
    assert (config.max_length, config.global_batch_size, config.max_epochs, config.warmup_epochs) == (300, 32, 20, 1)
    assert (config.corpus_schedule, config.forums, config.min_questions) == ("round_robin", "all", 1000)
    assert (config.mlm_weight, config.pair_weight) == (0.0, 1.0)
    assert config.objective.startswith("title_body")


@pytest.mark.parametrize("name", IN_DOMAIN)
def test_fine_tuning_in_domain_has_the_numbers_of_multicqa(name):
    config = parse(FinetuneConfig, "", argv=["--config", str(FOLDER / f"{name}.yaml"), "--data", "files=x"])
    check_finetuning(config)
    found = config.negatives_per_question, config.negatives_from, config.seeds, config.eval_filter
    assert found == IN_DOMAIN[name]
    assert (config.max_length, config.batch_size, config.epochs, config.loss) == (300, 32, 20, "pointwise")
    assert config.epochs * config.warmup_share == 1  # epoch
    assert config.learning_rate == 5e-5
    assert config.output_dir == f"runs/{name}"


@pytest.mark.parametrize(("name", "rate"), [("multicqa-adapters", 1e-4), ("multicqa-fusion", 5e-5)])
def test_adapters_and_fusion_have_their_own_rates(name, rate):
    config = read(name)
    assert (config.max_length, config.global_batch_size, config.max_epochs, config.warmup_epochs) == (300, 32, 20, 1)
    assert (config.learning_rate, config.objective) == (rate, "title_body")
    assert config.corpus_schedule == "round_robin"  # of one forum: an epoch of at most 100,000 questions
