"""Several experiments in one table, and the stages that each begins with."""
