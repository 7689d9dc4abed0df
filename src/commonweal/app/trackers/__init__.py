"""Trackers that people have already: a run's record, written to TensorBoard, MLflow and others."""

__all__ = ["NAMES"]

NAMES = ("tensorboard", "mlflow", "wandb", "trackio")
