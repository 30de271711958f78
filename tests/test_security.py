"""Model folders from elsewhere run no code, and releases show nothing of this machine.

docs/releases.md says what is protected, and what is not.
"""

import ast
import json
import pickle
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from finetune.ranking.kinds import load_bi_encoder
from finetune.ranking.ranker import load_own_tokenizer, load_ranker, load_trained_ranker
from finetune.training.config import FinetuneConfig
from finetune.training.experiment import run_experiment
from pretrain.config import PretrainConfig
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.modeling.pair_model import load_config, load_model
from pretrain.release.release import release
from pretrain.run import pretrain
from tests.synthetic import Touching, write_model

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch", "benchmarks")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
STILL = {"num_labels": 1, "hidden_dropout_prob": 0.0}


# Code in a model folder -----------------------------------------------------------------------------------------


def refusal(action):
    """Returns the line with which ``action`` is refused, or None; any other error comes out."""
    try:
        action()
    except KinspanError as error:
        return str(error)
    return None


def loaders():
    """Everything that opens a model folder, by name."""
    return {
        "load_tokenizer": load_tokenizer,
        "load_own_tokenizer": load_own_tokenizer,
        "load_config": load_config,
        "load_model": lambda folder: load_model(folder, 1),
        "load_replaced_token_model": lambda folder: load_replaced_token_model(folder, "1/2", "tied", 1),
        "generator": lambda folder: load_replaced_token_model(folder, folder, "tied", 1),
        "load_bi_encoder": load_bi_encoder,
        "load_ranker": load_ranker,
        "load_trained_ranker": load_trained_ranker,
    }


@pytest.fixture
def folder(tmp_path):
    """A model folder that loads: weights, config, tokenizer."""
    return write_model(tmp_path / "model", AutoModelForSequenceClassification, "electra", **SMALL, **STILL)


@pytest.mark.parametrize("known_type", [True, False])
@pytest.mark.parametrize("name", loaders())
def test_custom_code_is_not_run(name, known_type, folder, tmp_path):
    """Refused in one line, or passed over where transformers has a class of its own; nobody is asked."""
    marker = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    code += "from transformers import ElectraConfig, ElectraForSequenceClassification, PreTrainedTokenizerFast\n"
    code += "class OwnConfig(ElectraConfig):\n    model_type = 'own'\n"
    code += "class OwnModel(ElectraForSequenceClassification):\n    config_class = OwnConfig\n"
    code += "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    (folder / "own.py").write_text(code)
    autos = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnModel"}
    autos |= {"AutoModelForMaskedLM": "own.OwnModel", "AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}
    for file in ("config.json", "tokenizer_config.json"):
        settings = json.loads((folder / file).read_text())
        settings["auto_map"] = autos
        if not known_type:
            settings |= {"model_type": "own"} if file == "config.json" else {"tokenizer_class": "OwnTokenizer"}
        (folder / file).write_text(json.dumps(settings))
    refused = refusal(lambda: loaders()[name](str(folder)))
    assert not marker.exists()
    assert known_type or refused, "code of its own is needed, and was not refused"
    assert refused is None or str(folder) in refused


def test_every_loading_call_says_that_code_is_not_trusted():
    """By the source: of transformers' and sentence-transformers' loading calls none leaves it to a default."""
    loading = re.compile(r"(?:(Auto\w*|auto|model_class)\.from_(pretrained|config)|CrossEncoder|SentenceTransformer)\(")
    files = [path for package in PACKAGES[:-1] for path in (ROOT / package).rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    calls = [ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = list(filter(loading.match, calls))
    assert len(asked) > 5
    assert not [call for call in asked if "trust_remote_code=False" not in call]
    assert not [call for call in calls if "trust_remote_code=True" in call]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside safetensors"])
@pytest.mark.parametrize("how", ["torch", "legacy", "pickle"])
@pytest.mark.parametrize("name", loaders())
def test_pickled_weights_run_nothing(name, how, beside, folder, tmp_path):
    marker = tmp_path / "ran"
    if not beside:
        (folder / "model.safetensors").unlink()
    harm = {"electra.embeddings.word_embeddings.weight": Touching(marker)}
    path = folder / "pytorch_model.bin"
    if how == "pickle":
        path.write_bytes(pickle.dumps(harm))
    else:
        torch.save(harm, path, _use_new_zipfile_serialization=how == "torch")
    refusal(lambda: loaders()[name](str(folder)))
    assert not marker.exists()


# What is given away ---------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(monkeypatch, tmp_path):
    """Names of this machine, its user and the test's folder, and a variable that nothing has any business with."""
    monkeypatch.setattr(socket, "gethostname", lambda: "kinspan-test-host")
    for name in ("USER", "LOGNAME", "HOSTNAME", "SOME_TOKEN"):
        monkeypatch.setenv(name, f"kinspan-test-{name}")
    return {str(tmp_path), str(ROOT), str(Path.home()) + "/", "kinspan-test-", "pytest-of-"}


def shows(folder, names):
    """Lists which of ``names`` stand in a file of the folder or in a file's name, and where."""
    seen = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes()
        seen += [(path.name, name) for name in names if name.encode() in content]
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                assert set(file.metadata()) == {"format"}
    return seen


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_release_shows_nothing_of_the_machine(family, tmp_path, tiny_documents, helpers, secrets):
    """From documents to the release, all of it in a folder whose name must not come through."""
    model = tmp_path / "models/start"
    write_model(model, AutoModelForSequenceClassification, family, **SMALL, **STILL)
    shutil.copytree(model, tmp_path / "models/generator")
    source = helpers.write_jsonl(tmp_path / "documents.jsonl", tiny_documents)
    helpers.prepare([source], model, tmp_path / "corpus", validation_share=0.2)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    settings = {"max_steps": 1, "global_batch_size": 4, "micro_batch_size": 4, "eval_pairs": 10, "precision": "fp32"}
    places = {"corpus": "corpus", "model": "models/start", "output_dir": "run", "deepspeed_config": "ds.json"}
    places |= {"generator": "models/generator"} if family == "electra" else {}
    pretrain(PretrainConfig(**settings, **{k: str(tmp_path / v) for k, v in places.items()}))
    released = release(tmp_path / "run", tmp_path / "release")
    assert shows(released, secrets) == []
    assert {name for name, _ in shows(tmp_path / "corpus", secrets)} <= {"request.json"}  # by which a repeat is known
    assert shows(tmp_path / "run", secrets)  # config.yaml and summary.json do tell: a run is not for others


def test_a_fine_tuned_ranker_shows_nothing_of_the_machine(folder, tmp_path, helpers, secrets):
    (tmp_path / "sets").mkdir()
    for split in ("train", "dev", "test"):
        pairs = [(f"why {split} {q}", a) for q in range(3) for a in range(3)]
        rows = [{"question": q, "answer": f"{a} stone", "label": int(not a)} for q, a in pairs]
        helpers.write_jsonl(tmp_path / f"sets/{split}.jsonl", rows)
    settings = {"seeds": 1, "epochs": 1, "max_length": 32, "precision": "fp32"}
    places = {"model": str(folder), "data": f"files={tmp_path}/sets", "output_dir": str(tmp_path / "out")}
    run_experiment(FinetuneConfig(**settings, **places))
    assert shows(tmp_path / "out/seed-1/best", secrets) == []
