"""How fast a round is: beside a hand-written loop, the limit, and other libraries."""
