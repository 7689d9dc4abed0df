"""Commands of the command line by topic; `cli` registers them."""
