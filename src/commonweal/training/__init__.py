"""What one client computes: task, loss, optimizer, local training, evaluation."""

__all__: list[str] = []
