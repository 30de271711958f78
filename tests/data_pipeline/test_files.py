"""A file is on the disk before it has its name, so that a loss of power leaves it whole or as it was."""

import os

from data_pipeline.files import write_atomically


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, waited_for = tmp_path / "latest", []

    def note(handle):
        waited_for.append((os.readlink(f"/proc/self/fd/{handle}"), path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(path, "step-00000004")
    assert waited_for == [(f"{path}.tmp", False), (str(tmp_path), True)]
    assert path.read_text() == "step-00000004"
