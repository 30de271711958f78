import pytest

from data_pipeline.prepare.document import Omitted, Rejected
from data_pipeline.prepare.readers import find_parts, parse_record, read_records


def read_all(name, part=None, keep_code=False):
    """All documents of a file or part; the reasons of what was rejected; and the reasons of what was omitted."""
    documents, rejected, omitted = [], [], []
    for record in read_records(name, part):
        try:
            documents += parse_record(record, keep_code)
        except Omitted as reason:
            omitted.append(str(reason))
        except Rejected as reason:
            rejected.append(str(reason))
    return documents, rejected, omitted


def read_in_parts(path):
    """As ``read_all``, of all parts of a file, one after another."""
    parts = find_parts(str(path), path.stat().st_size)
    results = [read_all(path, part) for part in parts]
    return tuple([item for result in results for item in result[k]] for k in range(3)), len(parts)


@pytest.fixture(name="read")
def _read():
    return read_all


@pytest.fixture(name="read_in_parts")
def _read_in_parts():
    return read_in_parts
