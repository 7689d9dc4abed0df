"""Predictions, exported models, model cards and badges: all that leaves a run."""

from commonweal.app.export.forms import FORMS, Form, export
from commonweal.app.export.model_card import card, write_card

__all__ = ["FORMS", "Form", "card", "export", "write_card"]
