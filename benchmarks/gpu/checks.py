"""The checks in the order in which they run: what must hold first, then what is only measured, the dearest last."""

from .runner import Check

CHECKS = (
    Check("machine", "speed:measure_machine", 90),
    Check("packed against padded", "families:compare_families", 75),
    Check("losses on GPU and CPU", "correctness:compare_losses", 100),
    Check("the same run twice", "repeats:repeat", 75),
    Check("kill -9 and resume", "repeats:kill_and_resume", 100),
    Check("RoBERTa-base", "speed:measure_roberta", 120),
    Check("the Trainer, RoBERTa-base", "peer:measure_trainer", 75),
    Check("where the time goes", "costs:profile_steps", 45),
    Check("memory", "costs:compare_memory", 45),
    Check("MiniLM-L6", "speed:measure_minilm", 50),
    Check("ELECTRA-base", "speed:measure_electra", 60),
    Check("ModernBERT-base", "speed:measure_modernbert", 60),
    Check("AS2 scoring", "scoring:compare_scoring", 60),
    Check("checkpoints", "costs:measure_checkpoints", 75),
    Check("compiled", "speed:measure_compiled", 75),
)
