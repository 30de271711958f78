"""The made dumps are such as the reader of StackExchange's takes."""

import json
import random

import pytest

from benchmarks.forums.dump import Material, plan_forums, read_material, write_dump
from data_pipeline.errors import KinspanError
from data_pipeline.prepare.pipeline import prepare
from objectives import OBJECTIVES
from pretrain.modeling.default_model import default_model
from pretrain.planning.forums import BALANCED, LARGEST, OF_BENCHMARKS

WORDS = random.Random(1)


def make_text():
    return " ".join("".join(WORDS.choice("abcdefghij") for _ in range(5)) for _ in range(20))


@pytest.fixture(scope="module")
def material():
    return Material(
        [make_text() for _ in range(30)], [make_text() for _ in range(60)], ["<pre><code>x = 1</code></pre>"]
    )


def test_sizes_lie_evenly_on_a_logarithmic_scale():
    forums = plan_forums(140, 30, 30_000)
    sizes = list(forums.values())
    assert (len(sizes), sizes[0], sizes[-1]) == (140, 30_000, 30)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[70] == pytest.approx(sizes[69] / sizes[-1], rel=0.1)
    assert set(BALANCED) | set(LARGEST) | set(OF_BENCHMARKS) < set(forums)
    assert set(list(forums)[:18]) == set(LARGEST)


def test_every_question_link_and_answer_is_read(material, tmp_path):
    forums = {"beer": 40, "made-001": 3}
    assert list(write_dump(tmp_path / "dumps", forums, material, seed=1)) == list(forums)
    for name, size in forums.items():
        folder = tmp_path / f"dumps/{name}.stackexchange.com"
        rows = (folder / "Posts.xml").read_text()
        prepared = prepare([str(folder)], default_model(), tmp_path / name, OBJECTIVES, quiet=True)
        counts = prepared.tally.counts
        assert prepared.manifest.totals["documents"] == size
        assert rows.count('PostTypeId="1"') == size
        assert rows.count("AcceptedAnswerId") > 0 or size == 3
        assert not any("rejected" in name for name, count in counts.items() if count)
        usable = json.loads((tmp_path / name / "manifest.json").read_text())
        assert sum(shard["documents"] for shard in usable["shards"]) == size
        links = (folder / "PostLinks.xml").read_text()
        assert links.count('LinkTypeId="3"') >= 2


def test_the_same_seed_gives_the_same_files(material, tmp_path):
    for place in ("one", "two"):
        list(write_dump(tmp_path / place, {"beer": 9}, material, seed=1))
    one, two = (tmp_path / place / "beer.stackexchange.com/Posts.xml" for place in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_folder_without_dumps_is_refused(tmp_path):
    with pytest.raises(KinspanError, match="--dumps"):
        read_material(tmp_path)
