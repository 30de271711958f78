"""Forums of questions and answers."""
