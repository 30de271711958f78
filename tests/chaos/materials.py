"""What the runs under attack train on: a synthetic corpus, small models, and the settings of each cell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.core.default_model import default_model
from data_pipeline.tokenizers import load_tokenizer
from tests.synthetic import synthetic_documents

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = {"max_steps": 48, "save_steps": 4, "eval_steps": 16, "eval_pairs": 24, "max_length": 40}
SETTINGS |= {"log_steps": 3}  # the sums since the last line of the log then stand in the checkpoint
SETTINGS |= {"global_batch_size": 12, "micro_batch_size": 4, "learning_rate": 1e-3, "precision": "fp32"}
SETTINGS |= {"stall_minutes": 0.5}
FAMILIES = {"mlm": "bert", "rtd": "electra"}


@dataclass(frozen=True)
class Cell:
    """What makes a reference run: everything that may change the bits of the end."""

    stage: int = 2
    world: int = 2
    objective: str = "ssp"
    token_loss: str = "mlm"

    def __str__(self) -> str:
        return f"zero{self.stage}-{self.world}x-{self.objective}-{self.token_loss}"


WHAT = (("ssp", "mlm"), ("all", "mlm"), ("ssp", "rtd"), ("all", "rtd"))


def all_cells() -> list[Cell]:
    """Every stage, world size, objective and token loss; three ranks for some of them."""
    cells = [Cell(stage, world, *what) for stage in range(4) for world in (2, 1) for what in WHAT[:3]]
    return [*cells, Cell(2, 2, *WHAT[3]), Cell(3, 2, *WHAT[3]), Cell(2, 3, *WHAT[0]), Cell(3, 3, *WHAT[1])]


@dataclass(frozen=True)
class Materials:
    """Folders that runs read and no trial changes."""

    folder: Path

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus/corpus"

    def model(self, token_loss: str) -> Path:
        return self.folder / FAMILIES[token_loss]

    def make(self) -> None:
        """Writes what is not there yet."""
        if not (self.corpus / "manifest.json").exists():
            from tests.conftest import prepare_here, write_jsonl

            self.corpus.parent.mkdir(parents=True, exist_ok=True)
            source = write_jsonl(self.corpus.parent / "documents.jsonl", synthetic_documents(60))
            shards = {"validation_share": 0.2, "shard_tokens": 1500}  # a run does not begin with all of them
            prepare_here([source], default_model(), self.corpus, **shards)
        if all((self.model(loss) / "config.json").exists() for loss in FAMILIES):
            return

        from tests.pretrain.conftest import make_config

        tokenizer = load_tokenizer(default_model())
        for loss, family in FAMILIES.items():
            tokenizer.save_pretrained(str(self.model(loss)))
            make_config(family, vocab_size=len(tokenizer)).save_pretrained(str(self.model(loss)))

    def settings(self, cell: Cell, output: Path, **changes: Any) -> dict[str, Any]:
        own = {"corpus": self.corpus, "model": self.model(cell.token_loss), "output_dir": output}
        own |= {"objective": cell.objective, "deepspeed_config": f"ds_configs/zero{cell.stage}.json"}
        return own | SETTINGS | changes
