"""Another number of ranks goes on with a run: states bit-identical after the hop, losses as if nothing had been.

Run as a program, this file is one rank: of ``write_checkpoints`` or of ``hop``.
"""

import json
import logging
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from data_pipeline.core.errors import KinspanError
from pretrain import run as runs
from pretrain.checkpoints import manifest, reader
from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer, full_weights
from pretrain.engine import engine as engines
from pretrain.engine.engine import build_engine
from pretrain.engine.schedule import Schedule
from tests.chaos.starts import free_port
from tests.pretrain.steps import make_run, read_lines, set_up_alone, start_engine, take_step
from tests.programs import run_programs
from tests.synthetic import Touching

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OPTIONS |= {"initializer_range": 0.2}  # large enough for the pair loss to feel what happens to the encoder
MOMENTS = ("exp_avg", "exp_avg_sq")
FAST = [("zero2", "fp32", "electra")]
SLOW = [("zero1", "fp32", "bert"), ("zero3", "fp32", "bert")]
SLOW += [("zero2", "fp32", "bert"), ("zero3", "fp32", "electra"), ("offload", "fp32", "bert")]
SLOW += [(s, "bf16", "bert") for s in ("zero1", "zero2", "zero3", "offload")]
GRID = [(s, "fp32", "bert") for s in ("zero0", "zero1", "zero2", "zero3", "offload")]
GRID += [(s, "fp32", "electra") for s in ("zero0", "zero1", "zero2", "zero3")]
GRID += [(s, "bf16", "bert") for s in ("zero1", "zero2", "zero3")]
WORLDS = (4, 2, 1, 3, 4)
HOP = 3  # steps


def config_of(case, base, output):
    stage, precision, family = case
    settings = {"deepspeed_config": f"ds_configs/{stage}.json", "precision": precision, "weight_decay": 0.1}
    settings |= {"generator": "1/2", "embedding_sharing": "tied" if family == "electra" else "none"}
    settings |= {"global_batch_size": 7, "micro_batch_size": 2, "max_steps": HOP * len(WORLDS), "save_steps": HOP}
    settings |= {"log_steps": 1, "eval_pairs": 0, "async_checkpoints": False}
    return make_run((base / "corpus").read_text(), base / family, output, **settings)


def train(setup, engine, first, end):
    """The sums of all ranks in each step."""
    sums = []
    for step in range(first, end):
        stats = take_step(setup, engine, step).sums
        dist.all_reduce(stats)
        sums.append(stats)
    return torch.stack(sums)


def moments(engine):
    """Of each parameter, whole, by all ranks."""
    from deepspeed.utils import safe_get_full_optimizer_state

    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):  # after the first group's step, for good
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    return {
        f"{name}/{key}": safe_get_full_optimizer_state(parameter, key).clone()
        for name, parameter in engine.module.named_parameters()
        for key in MOMENTS
    }


def write_checkpoints(base, cases):
    """Of each case one of step 3, with its moments, the sums of the steps after it, and the weights then."""
    for case in cases:
        setup, engine = start_engine(config_of(case, base, base / "-".join(case)))
        train(setup, engine, 0, HOP)
        state = {"step": HOP, "world_size": setup.layout.world}
        Writer(setup.folder / "checkpoints", setup.rank).save(engine, state)
        then = {"moments": moments(engine), "sums": train(setup, engine, HOP, 2 * HOP)}
        then["weights"] = full_weights(engine)
        if setup.rank == 0:
            torch.save(then, setup.folder / "then.pt")


class Stopped(Exception):
    pass


def hop(base, folder, end):
    """Starts or goes on with the run of every case of the grid, until the checkpoint of step ``end`` is written."""
    until_end = Schedule.rate

    def stopping(schedule, step):
        if step == end:
            raise Stopped
        return until_end(schedule, step)

    for case in GRID:
        engines = []

        def build(*arguments, engines=engines):
            engines.append(build_engine(*arguments))
            return engines[0]

        patches = mock.patch.object(Schedule, "rate", stopping), mock.patch.object(runs, "build_engine", build)
        with patches[0], patches[1], suppress(Stopped):
            runs.pretrain(config_of(case, base, folder / "-".join(case)))
        if case[2] == "electra":
            check_ties(engines[0].module)
        if case[0] != "zero3":
            check_replicas(engines[0].module)


def check_ties(module):
    generator, classifier = module.generator, module.classifier
    assert generator.generator_lm_head.weight is generator.electra.embeddings.word_embeddings.weight
    for name, parameter in generator.electra.embeddings.named_parameters():
        assert classifier.electra.embeddings.get_parameter(name) is parameter, name


def check_replicas(module):
    for name, parameter in module.named_parameters():
        one = parameter.detach().clone()
        dist.broadcast(one, 0)
        assert torch.equal(one, parameter), name


def started(world, *arguments):
    """Runs this file as ``world`` ranks."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world), "LOCAL_SIZE": str(world)}
    ranks = [group | {"PYTHONPATH": str(ROOT), "RANK": str(k), "LOCAL_RANK": str(k)} for k in range(world)]
    ended = run_programs([(__file__, *arguments)] * world, cwd=ROOT, timeout=1200, variables=ranks)
    for done in ended:
        assert done.returncode == 0, done.stderr[-3000:]
    return ended[0].stdout


@pytest.fixture(scope="module")
def base(make_model, tiny_corpus, tmp_path_factory):
    """A folder with all that another process needs to find: models and the corpus's path."""
    folder = tmp_path_factory.mktemp("elastic")
    for family in ("bert", "electra"):
        shutil.copytree(make_model(family, **OPTIONS), folder / family)
    (folder / "corpus").write_text(str(tiny_corpus))
    return folder


@pytest.fixture(scope="module")
def written_by_two(base):
    """``written_by_two(case)``: the folder of a case; all of its kind are written at once."""
    done = set()

    def written(case):
        cases = "FAST" if case in FAST else "SLOW"
        if cases not in done:
            started(2, "write_checkpoints", base, cases)
            done.add(cases)
        return base / "-".join(case)

    return written


@pytest.mark.parametrize("case", [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids="-".join)
def test_one_rank_takes_over_from_two(case, base, written_by_two, tmp_path):
    """Weights, moments and settings bit-identical after the hop, and what follows the same to rounding."""
    theirs = written_by_two(case)
    then = torch.load(theirs / "then.pt")
    folder = shutil.copytree(theirs / "checkpoints", tmp_path / "c++ (1)" / "checkpoints")
    found = folder / f"step-{HOP:08d}"
    config = config_of(case, base, tmp_path / "run")
    setup = set_up_alone(config)
    universal = reader.convert_to_universal(found, 1, 0)
    engine = build_engine(setup.model, setup.deepspeed_settings, config.learning_rate, config.weight_decay)
    before = settings_of(engine)
    stated = {"step": HOP, "world_size": 1, "odd_sizes_last": engines.puts_odd_sizes_last()}
    assert load_checkpoint(engine, found, 1, universal) == stated
    assert list(folder.iterdir()) == [found]
    assert manifest.find_damage(found) is None

    assert same(full_weights(engine), load_file(found / "weights.safetensors"))
    assert same(moments(engine), then["moments"])
    assert settings_of(engine) == before
    assert {settings["weight_decay"] for settings in before} == {0.0, 0.1}
    assert steps(engine) == {float(HOP)}
    check_module(engine, case)
    sums = train(setup, engine, HOP, 2 * HOP)
    assert steps(engine) == {2.0 * HOP}
    if case[1] == "fp32":
        assert torch.allclose(sums, then["sums"], rtol=1e-5)
        weights = full_weights(engine)
        far = {name for name in weights if not torch.allclose(weights[name], then["weights"][name], atol=1e-4)}
        assert all(name.endswith("key.bias") for name in far)  # its gradient is rounding alone, which Adam enlarges
    else:
        assert torch.allclose(sums[:, 0], then["sums"][:, 0], rtol=1e-2)


def test_a_device_with_another_order_of_parameters_takes_over(base, written_by_two, tmp_path, monkeypatch):
    """On a GPU parameters of odd sizes come last, see runtime/engine.py: nothing is taken for something else."""
    theirs = written_by_two(FAST[0])
    folder = shutil.copytree(theirs / "checkpoints", tmp_path / "checkpoints")
    found = folder / f"step-{HOP:08d}"
    config = config_of(FAST[0], base, tmp_path / "run")
    setup = set_up_alone(config)
    assert reader.convert_to_universal(found, 2, 0) is None
    for module in (reader, engines):
        monkeypatch.setattr(module, "puts_odd_sizes_last", lambda: True)
    universal = reader.convert_to_universal(found, 2, 0)
    assert universal
    engine = build_engine(setup.model, setup.deepspeed_settings, config.learning_rate, config.weight_decay)
    odd = [[parameter.numel() % 8 > 0 for parameter in group] for group in engine.optimizer.bit16_groups]
    assert any(map(any, odd))
    assert odd == [sorted(group) for group in odd]
    own = [group["params"] for group in engines.group_parameters(setup.model, config.weight_decay)]
    assert [[id(p) for p in group] for group in own] != [[id(p) for p in g] for g in engine.optimizer.bit16_groups]
    assert load_checkpoint(engine, found, 1, universal)["odd_sizes_last"]
    assert same(full_weights(engine), load_file(found / "weights.safetensors"))
    assert same(moments(engine), torch.load(theirs / "then.pt")["moments"])
    check_module(engine, FAST[0])


def settings_of(engine):
    return [{k: v for k, v in group.items() if k != "params"} for group in engine.optimizer.param_groups]


def steps(engine):
    return {float(state["step"]) for state in engine.optimizer.state.values()}


def check_module(engine, case):
    """What computes is the master copy, rounded; and what was one parameter still is."""
    import deepspeed

    if case[2] == "electra":
        check_ties(engine.module)
    weights = full_weights(engine)
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=case[0] == "zero3"):
            assert torch.equal(parameter.detach(), weights[name].to(parameter.dtype)), name


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k].flatten(), two[k].flatten()) for k in one)


@pytest.fixture
def found(written_by_two, tmp_path):
    """A checkpoint of two ranks that a test may harm."""
    shutil.copytree(written_by_two(FAST[0]) / "checkpoints", tmp_path / "checkpoints")
    return tmp_path / f"checkpoints/step-{HOP:08d}"


def refusal(found):
    """The error's text; nothing is left behind, and the checkpoint is as it was."""
    files = {path: path.read_bytes() for path in found.rglob("*") if path.is_file()}
    with pytest.raises(KinspanError) as caught:
        reader.convert_to_universal(found, 1, 0)
    assert not (found.parent / reader.FOLDER).exists()
    assert files == {path: path.read_bytes() for path in found.rglob("*") if path.is_file()}
    text = str(caught.value)
    assert "\n" not in text
    assert f"{found} of 2 ranks could not be converted for 1: " in text
    return text


@pytest.mark.parametrize("name", ["zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"])
def test_nothing_else_is_unpickled(name, found, tmp_path):
    torch.save({"optimizer_state_dict": Touching(tmp_path / "harmed")}, found / "engine" / name)
    assert "UnpicklingError" in refusal(found)
    assert not (tmp_path / "harmed").exists()


def test_a_conversion_that_changes_a_weight_is_found_out(found, monkeypatch):
    convert = reader.write_universal_checkpoint

    def wrong(*arguments):
        convert(*arguments)
        path = next((found.parent / reader.FOLDER / "engine/zero").glob("*LayerNorm.bias")) / "fp32.pt"
        bias = torch.load(path)["param"].detach()
        bias[0] += 1e-6
        torch.save({"param": bias}, path)

    monkeypatch.setattr(reader, "write_universal_checkpoint", wrong)
    assert "LayerNorm.bias" in refusal(found)


@pytest.fixture(scope="module")
def hopped(base):
    """Folders of the grid's runs: those of 4 ranks throughout, and those that change at every writer."""
    constant, changing = base / "constant", base / "changing"
    started(4, "hop", base, constant, "none")
    for number, world in enumerate(WORLDS, 1):
        said = started(world, "hop", base, changing, HOP * number)
        again = 0 if number == 1 else sum(case[0] != "zero0" for case in GRID)
        assert said.count(f"converting it for {world}\n") == again
        for case in GRID:
            state = changing / "-".join(case) / f"checkpoints/step-{HOP * number:08d}/state.json"
            assert json.loads(state.read_text())["world_size"] == world
    return constant, changing


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID, ids="-".join)
def test_4_then_2_then_1_then_3_then_4_ranks_log_the_losses_of_4(case, hopped):
    one, two = (read_lines(folder / "-".join(case), "train") for folder in hopped)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, HOP * len(WORLDS) + 1))
    names = [name for name in one[0] if name.endswith("_loss")]
    assert "pair_loss" in names
    assert ("rtd_loss" in names) == (case[2] == "electra")
    tolerance = 1e-5 if case[1] == "fp32" else 2e-2
    for ours, theirs in zip(one, two, strict=True):
        assert [ours[n] for n in names] == pytest.approx([theirs[n] for n in names], rel=0, abs=tolerance)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=100 * tolerance)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    if sys.argv[1] == "write_checkpoints":
        write_checkpoints(Path(sys.argv[2]), globals()[sys.argv[3]])
    else:
        hop(Path(sys.argv[2]), Path(sys.argv[3]), None if sys.argv[4] == "none" else int(sys.argv[4]))
