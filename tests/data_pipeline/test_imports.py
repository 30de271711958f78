import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_data_pipeline_and_objectives_import_no_torch():
    files = sorted((ROOT / "data_pipeline").glob("*.py"))
    modules = [f"data_pipeline.{f.stem}" for f in files if f.stem != "__init__"]
    assert {"data_pipeline.sampling.stream", "data_pipeline.corpus", "data_pipeline.sampling.block"} <= set(modules)
    code = f"import sys, {', '.join(modules)}, objectives, objectives.mlm; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
