import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_data_pipeline_and_objectives_import_no_torch():
    files = [f for package in ("data_pipeline", "objectives") for f in sorted((ROOT / package).rglob("*.py"))]
    parts = [f.relative_to(ROOT).with_suffix("").parts for f in files]
    modules = {".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts}
    assert {"data_pipeline.sampling.stream", "data_pipeline.corpus", "data_pipeline.prepare.readers.jsonl"} <= modules
    code = f"import sys, {', '.join(sorted(modules))}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
