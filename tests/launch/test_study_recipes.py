"""The studies of the papers' tables, against the papers' own figures and settings."""

from pathlib import Path

import pytest
import yaml

from finetune.study import StudyContext, plan_rows, read_study

FOLDER = Path(__file__).resolve().parents[2] / "launch/recipes"
STUDIES = sorted(p.stem for p in FOLDER.glob("*.yaml") if "rows" in yaml.safe_load(p.read_text()))
TANDA = ["tanda-asnq-labels", "tanda-noise", "tanda-stability", "tanda-wikiqa-trecqa"]
DI_LIELLO = ["di-liello-asnq", "di-liello-electra", "di-liello-roberta"]

# MAP and MRR of WikiQA, then of TREC-QA, as the papers' tables have them: fractions in one, percent in the other.
# P@1, MAP and MRR in Di Liello et al.
FIGURES = {  # of a row of each study
    "tanda-wikiqa-trecqa": {"RoBERTa-B TANDA": "0.889 0.901 0.914 0.952"},
    "tanda-noise": {"TANDA, 20% noise": "0.870 0.886 0.891 0.937"},
    "tanda-asnq-labels": {"negatives 2, 3": "0.883 0.898 0.823 0.871"},
    "di-liello-roberta": {"RoBERTa + SSP": "82.9 88.7 89.9 88.5 89.3 93.6"},
    "di-liello-electra": {"TANDA ELECTRA": "85.6 90.2 91.4 92.6 91.6 95.5"},
    "di-liello-asnq": {"ELECTRA + All": "65.0 69.3 75.2"},
}


def configs(name):
    """Each row of a study by name, with the settings that it fine-tunes with."""
    study = read_study(FOLDER / f"{name}.yaml")
    transfer = "asnq=A" if any(row.tanda for row in study.rows) else None
    named = {"corpus": "c", "source": f"askubuntu_qa={FOLDER}"}
    context = StudyContext(study, ["wikiqa=W"], Path("runs"), {}, transfer, lambda *_: lambda: None, named)
    return {planned.row.name: (planned.row, planned.config) for planned in plan_rows(context)}


@pytest.mark.parametrize("name", STUDIES)
def test_can_be_read_and_meant(name):
    assert read_study(FOLDER / f"{name}.yaml").title
    assert configs(name)  # which are checked


@pytest.mark.parametrize("name", FIGURES)
def test_has_the_figures_of_the_paper(name):
    rows = [row for row in read_study(FOLDER / f"{name}.yaml").rows if row.name in FIGURES[name]]
    assert rows
    percent = name in DI_LIELLO
    sets = ["asnq"] if name == "di-liello-asnq" else ["wikiqa", "trecqa"]
    metrics = ["p@1", "map", "mrr"] if percent else ["map", "mrr"]
    for row in rows:
        figures = [float(f) / (100 if percent else 1) for f in FIGURES[name][row.name].split()]
        ours = [row.paper[data][metric] for data in row.paper for metric in metrics]
        assert ours == pytest.approx(figures)
        assert list(row.paper) == sets
        assert all(set(of_set) == set(metrics) for of_set in row.paper.values())


@pytest.mark.parametrize("name", TANDA)
def test_has_the_numbers_of_tandas_section_5(name):
    for row, config in configs(name).values():
        assert (config.train_filter, config.eval_filter) == ("no-all-negative", "clean")
        assert (config.max_length, config.weight_decay, config.search_folds) == (128, 0.0, None)
        assert config.loss == "pointwise"
        assert (config.transfer is not None) == row.tanda
        assert config.model == ("roberta-base" if row.name.startswith("RoBERTa-B") else "bert-base-uncased")
        if not row.tanda:
            assert 1e-6 <= config.learning_rate <= 2e-5
            continue
        assert (config.transfer_learning_rate, config.transfer_epochs) == (2e-5, 9)
        if name == "tanda-stability":
            assert (config.learning_rate, config.test_every_validation) == (1e-6, True)
        elif row.name.endswith("FT ASNQ") or name == "tanda-asnq-labels":
            assert config.epochs == 0  # no adapt step
        else:
            assert (config.learning_rate, config.epochs) == (1e-6, 3)


def test_both_arms_of_as2_differ_in_the_pair_loss_alone():
    ssp, mlm = (yaml.safe_load((FOLDER / f"as2-{arm}.yaml").read_text()) for arm in ("ssp", "mlm"))
    assert {name for name in ssp if ssp[name] != mlm[name]} == {"pair_weight"}
    assert (ssp["mlm_weight"], mlm["pair_weight"]) == (1, 0)


def test_noise_and_negatives_are_those_of_the_row():
    noise = {name: config.label_noise for name, (_, config) in configs("tanda-noise").items()}
    shares = {"": 0, ", 10% noise": 0.1, ", 20% noise": 0.2}
    assert noise == {how + named: share for how in ("FT", "TANDA") for named, share in shares.items()}
    for name, (_, config) in configs("tanda-asnq-labels").items():
        assert name == "negatives " + ", ".join(map(str, config.negative_labels))


@pytest.mark.parametrize("name", DI_LIELLO)
def test_has_the_numbers_of_di_liellos_appendix_b(name):
    for row, config in configs(name).values():
        base = "electra-base" if "ELECTRA" in row.name else "roberta-base"
        assert (config.weight_decay, config.max_grad_norm, config.patience, config.seeds) == (0.01, 1.0, 5, 5)
        assert (config.train_filter, config.warmup_steps) == ("raw", 1000)
        assert config.fresh_head == ("MLM only" in row.name)
        if row.name.endswith("Base") or row.tanda:
            assert config.model == {"electra-base": "google/electra-base-discriminator"}.get(base, base)
        else:
            objective = row.name.split()[2].lower() + ("-mlm-only" if config.fresh_head else "")
            run = FOLDER / f"{base}-{objective}.yaml"
            assert config.model == yaml.safe_load(run.read_text())["output_dir"] + "/release"
        if name == "di-liello-asnq":
            assert (config.epochs, config.learning_rate, config.search_folds) == (6, 1e-5, None)
            assert config.batch_size == (1024 if base == "electra-base" else 2048)
        else:
            assert config.epochs == 40
            assert config.search_batch_sizes == [16, 32, 64]
            assert config.search_learning_rates == [2e-6, 5e-5, 1e-5, 2e-5]
            assert (config.search_folds is None) == row.tanda
        if row.tanda:
            assert (config.transfer_epochs, config.transfer_learning_rate) == (6, 1e-5)
            assert config.transfer_batch_size == (1024 if base == "electra-base" else 2048)
