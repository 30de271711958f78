"""From a checkpoint to the numbers of a paper's table: answer sentence selection, fine-tuned and measured."""
