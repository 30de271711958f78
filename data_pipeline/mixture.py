"""One or more objectives in fixed shares; for now one."""

from dataclasses import dataclass

from .pairs import Objective


@dataclass(frozen=True)
class Mixture:
    """``names`` of the objectives, and the one that there is."""

    names: tuple[str, ...]
    objective: Objective
    positive_share: float = 0.2

    @property
    def max_length(self) -> int:
        return self.objective.max_length
