"""What leaves a run: predictions, exported models, model cards and badges."""

from commonweal.export.forms import FORMS, Form, export
from commonweal.export.model_card import card, write_card

__all__ = ["FORMS", "Form", "card", "export", "write_card"]
