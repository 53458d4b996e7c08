"""Extensions: parts of the product that the core does not need."""
