import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_evaluation_imports_no_torch_and_no_training():
    """Rankings can be measured where torch is not installed, and nothing that measures depends on what trains."""
    modules = [f"finetune.evaluation.{file.stem}" for file in (ROOT / "finetune/evaluation").glob("[!_]*.py")]
    assert {"finetune.evaluation.metrics", "finetune.evaluation.comparison"} <= set(modules)
    unwanted = "'torch', 'finetune.training', 'finetune.ranking'"
    code = f"import sys, {', '.join(modules)}; sys.exit([m for m in ({unwanted}) if m in sys.modules] or 0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
