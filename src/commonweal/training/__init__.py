"""Training on one client: methods, objectives, optimizers, local training, evaluation.

To follow one client's training, read `client.py` (a method, from its start to its reply),
`objective.py` (what it minimises), `batches.py` (which samples it takes when), `local.py` (the loop
over the steps), `trainer.py` (how a step is computed: the interface), `autograd.py` (for any model)
and `dense.py` (in closed form, for stacks of linear layers).
"""
