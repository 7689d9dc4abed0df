"""One rule a file: how much each report of a cohort counts."""
