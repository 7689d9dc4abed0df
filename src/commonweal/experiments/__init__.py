"""Published tables, and the experiments that repeat them: <paper>/<table>.toml."""
