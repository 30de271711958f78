"""Makes the same corpus with any number of workers, on any executor, after any interruption."""

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import lock_file
from data_pipeline.corpus import Corpus
from data_pipeline.prepare import pipeline, plan, spill
from data_pipeline.prepare.plan import InputTask
from data_pipeline.prepare.spill import Buckets, SpillWriter

ROOT = Path(__file__).resolve().parents[3]
FILES = 6


@pytest.fixture(scope="module")
def sources(helpers, tmp_path_factory):
    """Six files, some of whose documents and paragraphs repeat those of others."""
    folder = tmp_path_factory.mktemp("sources")
    documents = helpers.synthetic_documents(48, seed="engine")
    for number in range(FILES):
        mine = documents[number * 8 : number * 8 + 8]
        mine.append({**documents[0], "id": f"again-{number}"})
        mine[0]["paragraphs"].append("This paragraph stands in each of the files, and is not of interest to anybody.")
        helpers.write_jsonl(folder / f"{number}.jsonl", mine)
    return folder


def make_small(patch):
    """Each file is a task of its own, and there are several buckets and ranges."""
    patch.setattr(plan, "MIN_GROUP", 1)
    patch.setattr(plan, "count_buckets", lambda *_: Buckets(3, 2))
    patch.setattr(pipeline, "RANGE_DOCUMENTS", 20)
    patch.setattr(pipeline, "RANGE_PARAGRAPHS", 100)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


SETTINGS = {"shard_tokens": 3000, "validation_share": 0.2, "boilerplate": 5}


@pytest.fixture
def run(helpers, sources, tmp_path):
    def prepare(folder="out", **options):
        return helpers.prepare([sources], default_model(), tmp_path / folder, **{**SETTINGS, **options})

    return prepare


@pytest.fixture(scope="module")
def expected(helpers, sources, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return helpers.prepare([sources], default_model(), tmp_path_factory.mktemp("good") / "out", **SETTINGS)


def facts(result):
    return result.manifest.fingerprint, result.tally.counts, result.tally.samples, result.tally.sources


# The same corpus ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_workers_makes_the_same_corpus(run, expected, workers):
    assert facts(run(num_workers=workers)) == facts(expected)
    assert len(expected.manifest.shards) >= 5


def rows_of(folder):
    """Id, split and tokens of the documents of all shards, in their order."""
    corpus = Corpus(folder)
    rows = [row for n in range(len(corpus.manifest.shards)) for row in corpus.shard(n).rows.to_pylist()]
    return [(row["id"], row["held_out"], row["tokens"]) for row in rows]


def test_no_document_is_lost_or_moved_by_buckets_segments_or_others(run, helpers, sources, tmp_path, monkeypatch):
    """Shards are ranges of one order, by a hash of the documents' ids, sources and texts."""
    with monkeypatch.context() as patch:
        patch.setattr(spill, "SEGMENT_BYTES", 3000)
        patch.setattr(spill, "MAX_OPEN", 2)
        run("many")
    monkeypatch.setattr(plan, "count_buckets", lambda *_: Buckets(1, 1))
    run("single")
    rows = rows_of(tmp_path / "many")
    assert rows == rows_of(tmp_path / "single")
    folder = tmp_path / sources.name
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("[2-9].jsonl"))
    helpers.prepare([folder], default_model(), tmp_path / "few", **SETTINGS)
    few = [row[:2] for row in rows_of(tmp_path / "few")]
    both = {row[:2] for row in rows} & set(few)
    assert len(both) > 10
    assert [row for row in few if row in both] == [row[:2] for row in rows if row[:2] in both]


@pytest.fixture
def compare(helpers, sources, tmp_path, monkeypatch):
    """``compare(**options)``: whether two files make the same corpus with these options as without, and a few tasks."""
    monkeypatch.setattr(plan, "count_buckets", lambda *_: Buckets(1, 1))
    monkeypatch.setattr(pipeline, "RANGE_DOCUMENTS", 1000)
    monkeypatch.setattr(pipeline, "RANGE_PARAGRAPHS", 1000)
    files = [sources / "0.jsonl", sources / "1.jsonl"]

    def run(**options):
        made = [
            helpers.prepare(files, default_model(), tmp_path / name, **SETTINGS, **more)
            for name, more in (("plain", {}), ("other", options))
        ]
        return facts(made[0]) == facts(made[1])

    return run


@pytest.mark.slow
def test_ray_makes_the_same_corpus(compare):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kinspan[ray]'")
    try:
        assert compare(executor="ray", num_workers=2)
    finally:
        ray.shutdown()


SLURM = {
    "sbatch": """
        echo "$@" >> "$SLURM_TEST/calls"
        for task in $(seq 0 1); do
            SLURM_ARRAY_TASK_ID=$task bash -c "${@: -1}" >> "$SLURM_TEST/log" 2>&1
        done
        echo 7
    """,
    "squeue": "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
}


@pytest.mark.slow
def test_slurm_is_given_jobs_that_make_the_same_corpus(compare, tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands run the jobs of an array, one after another."""
    (tmp_path / "bin").mkdir()
    for name, script in SLURM.items():
        path = tmp_path / "bin" / name
        path.write_text("#!/bin/bash\n" + textwrap.dedent(script))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TEST", str(tmp_path))
    monkeypatch.setattr("data_pipeline.prepare.tasks.POLL_SECONDS", 0.1)
    sbatch = ["partition=cpu", "time=01:00:00", "account=nlp"]
    assert compare(executor="slurm", num_workers=2, sbatch=sbatch)
    (call,) = (line for line in (tmp_path / "calls").read_text().splitlines() if "kinspan-encode" in line)
    asked = ("--partition=cpu", "--time=01:00:00", "--account=nlp", "--array=0-1%2", "--job-name=kinspan-encode")
    assert set(asked) <= set(call.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"executor": "ray"}, "--executor ray"),
        ({"executor": "slurm", "sbatch": ["partition=cpu", "time=1"]}, "--executor slurm"),
        *(({"executor": "slurm", "sbatch": given}, "--sbatch") for given in ([], ["partition=cpu"], ["=3", "time=1"])),
    ],
)
def test_an_executor_that_cannot_run_is_named(run, monkeypatch, tmp_path, options, named):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KinspanError, match=named):
        run(**options)


# What goes wrong ----------------------------------------------------------------------------------------------------


def test_one_task_that_fails_is_named_and_the_next_run_does_it_alone(run, expected, tmp_path, monkeypatch):
    whole, encoded = InputTask.read, tmp_path / "out/partial/encoded"

    def read(self):
        if "2.jsonl" in self.pieces[0][0].name:
            raise RuntimeError("cosmic rays")
        return whole(self)

    with monkeypatch.context() as patch:
        patch.setattr(InputTask, "read", read)
        with pytest.raises(KinspanError, match=r"2\.jsonl.*cosmic rays") as error:
            run()
    (note,) = (tmp_path / "out/partial").glob("run-*/encode/*.failed")
    assert "Traceback" in note.read_text()
    assert str(note) in str(error.value)
    assert not (tmp_path / "out/manifest.json").exists()
    done = {p: p.stat().st_mtime_ns for p in encoded.glob("*.arrow")}
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # so that what was done can still be looked at
    assert facts(run()) == facts(expected)
    after = {p: p.stat().st_mtime_ns for p in encoded.glob("*.arrow")}
    assert (len(done), len(after)) == (FILES - 1, FILES)
    assert done.items() <= after.items()


def test_a_full_disk_is_a_clear_error_and_there_is_a_way_on(run, expected, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SpillWriter, "finish", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(KinspanError, match=r"--output_dir .*No space left on device"):
            run()
    assert facts(run()) == facts(expected)


def test_another_input_has_none_of_the_others_read_again(helpers, sources, tmp_path, monkeypatch):
    """Though the corpus grows, and with it the number of buckets."""
    folder = tmp_path / "in"
    shutil.copytree(sources, folder)
    monkeypatch.setattr(plan, "count_buckets", lambda total, *_: Buckets(1 + total // 40_000, 2))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "decide_documents", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            helpers.prepare([folder], default_model(), tmp_path / "out", **SETTINGS)
    helpers.write_jsonl(folder / "1a.jsonl", helpers.synthetic_documents(30, seed="added"))
    read = []
    whole = InputTask.read
    monkeypatch.setattr(InputTask, "read", lambda self: read.append(self.name) or whole(self))
    again = helpers.prepare([folder], default_model(), tmp_path / "out", **SETTINGS)
    assert {name.rpartition("/")[2].partition(",")[0] for name in read} == {"1a.jsonl"}
    assert facts(helpers.prepare([folder], default_model(), tmp_path / "anew", **SETTINGS)) == facts(again)


@pytest.mark.parametrize(
    "changed", [{"tokenizer": "tokenizers/roberta-base-tokenizer"}, {"shard_tokens": 9000}, {"duplicates": "keep"}]
)
def test_what_an_interrupted_run_left_is_not_taken_for_other_settings(
    helpers, sources, request, tmp_path, monkeypatch, changed
):
    options = {**SETTINGS, **changed}
    tokenizer = default_model()
    if "tokenizer" in options:
        tokenizer = request.getfixturevalue("shared") / options.pop("tokenizer")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "fingerprint_corpus", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            helpers.prepare([sources], default_model(), tmp_path / "out", **SETTINGS)
    made, anew = (helpers.prepare([sources], tokenizer, tmp_path / name, **options) for name in ("out", "anew"))
    assert facts(made) == facts(anew)


def test_a_second_run_is_kept_out(run, tmp_path):
    (tmp_path / "out/partial").mkdir(parents=True)
    with lock_file(tmp_path / "out/partial/lock", ""), pytest.raises(KinspanError, match="another run is writing"):
        run()


# Killed -------------------------------------------------------------------------------------------------------------

PROGRAM = """
    from data_pipeline.prepare import plan
    from data_pipeline.prepare.cleaning import Rules
    from data_pipeline.prepare.spill import Buckets
    from data_pipeline.prepare.pipeline import prepare
    from objectives import OBJECTIVES

    if __name__ == "__main__":
        plan.MIN_GROUP = 1
        plan.count_buckets = lambda *_: Buckets(3, 2)
        print("ready", flush=True)
        prepare([{inputs!r}], {model!r}, {output!r}, OBJECTIVES, Rules(validation_share=0.2), 2, 3000, quiet=True,
                boilerplate=5)
        print("done", flush=True)
"""


def start(program, sources, output):
    text = textwrap.dedent(PROGRAM).format(inputs=str(sources), model=default_model(), output=str(output))
    program.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, program], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_corpus(sources, tmp_path, expected):
    """It is killed at random moments between its start and its end, and then ends."""
    began = time.monotonic()
    process = start(tmp_path / "program.py", sources, tmp_path / "whole")
    assert process.wait(120) == 0
    seconds = time.monotonic() - began
    draw = random.Random(4)
    for _ in range(3):
        process = start(tmp_path / "program.py", sources, tmp_path / "killed")
        time.sleep(draw.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start(tmp_path / "program.py", sources, tmp_path / "killed")
    assert process.wait(120) == 0
    whole, killed = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("whole", "killed"))
    assert whole == killed
    assert killed["fingerprint"] == expected.manifest.fingerprint
