"""One local objective a file: what a client does with the model it receives."""
