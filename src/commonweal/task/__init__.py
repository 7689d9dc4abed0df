"""Models and how they are scored: module, vectors, losses, scores, what clients use."""
