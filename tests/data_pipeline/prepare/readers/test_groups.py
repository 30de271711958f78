"""Linked questions are a group, whatever the direction and length of their links."""

import json
import random

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from data_pipeline.prepare.readers.forums import name_groups
from tests.synthetic import write_file


@pytest.mark.parametrize(
    ("links", "name"),
    [
        ({"b": ["a"], "c": ["a"]}, "a"),  # siblings
        ({"c": ["b"], "b": ["a"]}, "a"),  # a chain
        ({"a": ["z"]}, "z"),  # the original, though another comes first
        ({"c": ["a", "b"]}, "a"),  # two originals of one duplicate
        ({"a": ["b"], "b": ["a"]}, "a"),  # a circle
        ({"a": ["a"]}, "a"),
    ],
)
def test_a_group_is_named_by_an_original(links, name):
    members = {*links, *(target for targets in links.values() for target in targets)}
    assert name_groups(links) == dict.fromkeys(members, name)


def test_groups_are_the_connected_components():
    rng = random.Random(0)
    for _ in range(30):
        count = rng.randint(2, 40)
        pairs = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(1, count))]
        links: dict[str, list[str]] = {}
        for source, target in pairs:
            links.setdefault(str(source), []).append(str(target))
        result = name_groups(links)
        graph = coo_array((np.ones(len(pairs)), np.array(pairs).T), (count, count))
        component = connected_components(graph, directed=False)[1]
        assert all((result[a] == result[b]) == (component[int(a)] == component[int(b)]) for a in result for b in result)


def test_questions_of_a_help_desk_come_with_their_group(tmp_path, read):
    """Links lead up and down the file; what is broken, or has neither id nor links, is on its own."""
    lines = [{"id": 1, "links": []}, {"links": [1]}, {"id": 5.0, "links": ["gone"]}, {"id": "x", "links": [5]}]
    lines += [{"id": "alone"}, {"id": "bad", "links": [[1]]}, {}]
    lines += [{"id": "a"}, {"id": "twice", "links": ["a"]}, {"id": "twice", "links": ["b"]}, {"id": "b"}]
    text = "".join(json.dumps({"title": "t", "text": "b", **line}) + "\n" for line in lines)
    path = write_file(tmp_path / "desk.jsonl", '{"links": broken\n' + text + '"links"\n')
    documents, rejected, _ = read(f"questions:{path}")
    groups = [(d.group or d.id) for d in documents]
    assert groups == ["1", "1", "gone", "gone", "alone", "desk.jsonl:8", "a", "a", "a", "a"]
    assert len(rejected) == 3
